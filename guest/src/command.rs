//! Starts the process of a session.
//!
//! Invariant: the process has a session of its own, and inherits nothing but its standard streams.
//! Failure: [`Refusal`], before anything runs.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use guestapi::{Reason, Start};
use nix::errno::Errno;

use crate::confine::{self, Limits, Step};
use crate::sys;
use crate::users::{self, Account};

/// What a user of a shell finds, too.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A process that runs, and our ends of its streams.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
    /// For its size.
    pub(crate) terminal: Option<OwnedFd>,
}

/// Why nothing runs.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("the request has no command")]
    Empty,
    #[error("the guest has no command {0:?}")]
    NoCommand(String),
    #[error("the guest has no directory {0:?}")]
    NoDirectory(String),
    #[error("start {0:?}: {1}")]
    Start(String, io::Error),
    #[error(transparent)]
    NoUser(#[from] users::Unknown),
    #[error("the confinement is invalid: {0}")]
    Confinement(#[from] confine::Invalid),
    #[error("the kernel of the guest refuses to {0}: {1}")]
    Step(Step, Errno),
    #[error("open a terminal: {0}: is devpts mounted in the guest?")]
    Terminal(io::Error),
}

impl Refusal {
    pub(crate) const fn reason(&self) -> Reason {
        match self {
            Self::NoCommand(_) => Reason::NoCommand,
            Self::NoDirectory(_) => Reason::NoDirectory,
            Self::NoUser(_) => Reason::NoUser,
            Self::Confinement(_) | Self::Step(..) => Reason::NoConfinement,
            _ => Reason::Other,
        }
    }
}

/// Starts the command of a session.
pub(crate) fn start(start: &Start) -> Result<Running, Refusal> {
    let (program, arguments) = start.command.split_first().ok_or(Refusal::Empty)?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear();
    let account = users::account(Path::new("/etc"), start.user.as_ref())?;
    command.envs(defaults(&account));
    if start.terminal.is_some() {
        command.env("TERM", "xterm");
    }
    for variable in &start.environment {
        if let Some((name, value)) = variable.split_once('=') {
            command.env(name, value);
        }
    }
    let directory = match start.directory.as_str() {
        "" => home(&account),
        given if Path::new(given).is_dir() => given,
        missing => return Err(Refusal::NoDirectory(missing.to_owned())),
    };
    command.current_dir(directory);
    let limits = start.confinement.as_ref().map(Limits::new).transpose()?;
    sys::in_session_of_its_own(&mut command, start.terminal.is_some(), &account, limits);
    match start.terminal {
        Some(size) => {
            let (ours, theirs) = sys::open_terminal(size).map_err(Refusal::Terminal)?;
            let copy = |of: &OwnedFd| of.try_clone().map_err(Refusal::Terminal);
            command.stdin(Stdio::from(copy(&theirs)?));
            command.stdout(Stdio::from(copy(&theirs)?));
            command.stderr(Stdio::from(theirs));
            let (input, output) = (copy(&ours)?, copy(&ours)?);
            Ok(Running {
                child: spawn(&mut command, program)?,
                stdin: Some(input),
                stdout: Some(output),
                stderr: None,
                terminal: Some(ours),
            })
        }
        None => {
            command.stdin(match start.input {
                true => Stdio::piped(),
                false => Stdio::null(),
            });
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = spawn(&mut command, program)?;
            Ok(Running {
                stdin: child.stdin.take().map(OwnedFd::from),
                stdout: child.stdout.take().map(OwnedFd::from),
                stderr: child.stderr.take().map(OwnedFd::from),
                child,
                terminal: None,
            })
        }
    }
}

fn spawn(command: &mut Command, program: &str) -> Result<Child, Refusal> {
    command.spawn().map_err(|error| match error.kind() {
        _ if let Some((step, errno)) = Step::of(&error) => Refusal::Step(step, errno),
        // A folder, or a file that is no program.
        ErrorKind::NotFound | ErrorKind::PermissionDenied => Refusal::NoCommand(program.to_owned()),
        _ => Refusal::Start(program.to_owned(), error),
    })
}

/// The environment of the account's shell.
fn defaults(account: &Account) -> [(&'static str, &str); 5] {
    let shell = match account.shell.as_str() {
        "" => "/bin/sh",
        shell => shell,
    };
    [
        ("PATH", PATH),
        ("HOME", home(account)),
        ("USER", &account.name),
        ("LOGNAME", &account.name),
        ("SHELL", shell),
    ]
}

fn home(account: &Account) -> &str {
    let home = match (account.home.as_str(), account.uid) {
        ("", 0) => "/root",
        (home, _) => home,
    };
    match Path::new(home).is_dir() {
        true => home,
        false => "/",
    }
}
