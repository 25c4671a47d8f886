//! Starts the process of a session.
//!
//! Invariant: the process has a session of its own, and inherits nothing but its standard streams.
//! It is in its cgroup before its program runs.
//! Failure: [`Refusal`], before anything runs.

use std::fs::DirBuilder;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Component, Path};
use std::process::{Child, Command, Stdio};

use guestapi::{Reason, SETTINGS, Setting, Start};
use nix::errno::Errno;

use crate::cgroups::{self, Group};
use crate::confine::{self, Limits};
use crate::places::Places;
use crate::step::Step;
use crate::sys::{self, Surroundings};
use crate::users::{self, Account};
use crate::view::{self, View};

/// What a user of a shell finds, too.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A process that runs, and our ends of its streams.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
    /// For its size.
    pub(crate) terminal: Option<OwnedFd>,
    /// That of a kept session.
    pub(crate) group: Option<Group>,
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
    #[error("failed to make the working directory {0:?}: {1}")]
    MakeDirectory(String, io::Error),
    #[error("start {0:?}: {1}")]
    Start(String, io::Error),
    #[error(transparent)]
    NoUser(#[from] users::Unknown),
    #[error("the confinement is invalid: {0}")]
    Confinement(#[from] confine::Invalid),
    #[error("the view of the file system cannot be prepared: {0}")]
    View(#[from] view::Invalid),
    #[error(transparent)]
    Group(#[from] cgroups::Error),
    #[error("the guest does not run the session {0:?}")]
    NoSession(String),
    #[error("{0} kernel parameters are more than {SETTINGS}")]
    Parameters(usize),
    #[error("{0:?} is no kernel parameter")]
    Parameter(String),
    #[error("set the kernel parameter {0} to {1:?}: {2}")]
    Sysctl(String, String, io::Error),
    #[error("the kernel of the guest refuses to {0}: {1}")]
    Step(Step, Errno),
    #[error("open a terminal: {0}: is devpts mounted in the guest?")]
    Terminal(io::Error),
}

impl Refusal {
    pub(crate) const fn reason(&self) -> Reason {
        match self {
            Self::NoCommand(_) => Reason::NoCommand,
            Self::NoDirectory(_) | Self::MakeDirectory(..) => Reason::NoDirectory,
            Self::NoUser(_) => Reason::NoUser,
            Self::NoSession(_) => Reason::NoSession,
            Self::Confinement(_)
            | Self::Step(..)
            | Self::View(_)
            | Self::Group(_)
            | Self::Parameter(_)
            | Self::Parameters(_)
            | Self::Sysctl(..) => Reason::NoConfinement,
            _ => Reason::Other,
        }
    }
}

/// Starts the command of a session.
pub(crate) fn start(start: &Start, places: &Places) -> Result<Running, Refusal> {
    let name = match start.keep.as_str() {
        "" => &start.within,
        keep => keep,
    };
    if !name.is_empty() {
        cgroups::check_name(name)?;
    }
    set_parameters(&start.sysctls)?;
    let view = View::new(start, places, name)?;
    let group = group(start, places)?;
    let running = run(start, view, group.as_ref());
    match running {
        Ok(running) => Ok(Running {
            group: group.filter(|_| !start.keep.is_empty()),
            ..running
        }),
        Err(refusal) => {
            if !start.keep.is_empty() {
                places.remove_files(name);
                if let Some(group) = group {
                    group.remove();
                }
            }
            Err(refusal)
        }
    }
}

/// The cgroup of a session: its own one, which is made, or that of the session within which it runs.
fn group(start: &Start, places: &Places) -> Result<Option<Group>, Refusal> {
    let cgroups = &places.cgroups;
    match (start.keep.as_str(), start.within.as_str()) {
        ("", "") => match start.limits.as_slice() {
            [] => Ok(None),
            _ => Err(cgroups::Error::NoCgroups.into()),
        },
        ("", within) => match cgroups.find(within) {
            None if cgroups.are_available() => Err(Refusal::NoSession(within.to_owned())),
            found => Ok(found),
        },
        (keep, _) => Ok(cgroups.make(keep, &start.limits)?),
    }
}

/// Sets kernel parameters.
fn set_parameters(all: &[Setting]) -> Result<(), Refusal> {
    if all.len() > SETTINGS {
        return Err(Refusal::Parameters(all.len()));
    }
    for Setting { name, value } in all {
        // Slashes separate when a part has a dot, such as the name of a network interface.
        let path = if name.contains('/') {
            name.clone()
        } else {
            name.replace('.', "/")
        };
        let is_below = |part| matches!(part, Component::Normal(_));
        if path.is_empty() || !Path::new(&path).components().all(is_below) {
            return Err(Refusal::Parameter(name.clone()));
        }
        let written = std::fs::write(Path::new("/proc/sys").join(path), value);
        written.map_err(|error| Refusal::Sysctl(name.clone(), value.clone(), error))?;
    }
    Ok(())
}

fn run(start: &Start, view: Option<View>, group: Option<&Group>) -> Result<Running, Refusal> {
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
    let is_late = view.as_ref().is_some_and(View::has_directory);
    let directory = match start.directory.as_str() {
        "" => home(&account),
        given if is_late => given,
        given if Path::new(given).is_dir() => given,
        missing if !start.keep.is_empty() => make_directory(missing)?,
        missing => return Err(Refusal::NoDirectory(missing.to_owned())),
    };
    if !is_late {
        command.current_dir(directory);
    }
    let limits = start.confinement.as_ref().map(Limits::new).transpose()?;
    let members = group.map(Group::members).transpose();
    let members = members.map_err(|error| Refusal::Start(program.clone(), error))?;
    let surroundings = Surroundings {
        has_terminal: start.terminal.is_some(),
        members,
        oom_score: sys::oom_score(start.oom_score_adj),
        view,
        limits,
    };
    sys::in_session_of_its_own(&mut command, &account, surroundings);
    match start.terminal {
        Some(size) => {
            let (ours, theirs) = sys::open_terminal(size).map_err(Refusal::Terminal)?;
            let copy = |of: &OwnedFd| of.try_clone().map_err(Refusal::Terminal);
            command.stdin(Stdio::from(copy(&theirs)?));
            command.stdout(Stdio::from(copy(&theirs)?));
            command.stderr(Stdio::from(theirs));
            let input = copy(&ours)?;
            let output = copy(&ours)?;
            Ok(Running {
                child: spawn(&mut command, program)?,
                stdin: Some(input),
                stdout: Some(output),
                stderr: None,
                terminal: Some(ours),
                group: None,
            })
        }
        None => {
            command.stdin(if start.input {
                Stdio::piped()
            } else {
                Stdio::null()
            });
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = spawn(&mut command, program)?;
            Ok(Running {
                stdin: child.stdin.take().map(OwnedFd::from),
                stdout: child.stdout.take().map(OwnedFd::from),
                stderr: child.stderr.take().map(OwnedFd::from),
                child,
                terminal: None,
                group: None,
            })
        }
    }
}

/// The working directory of a process that is a container; images rely on runtimes to make it.
fn make_directory(path: &str) -> Result<&str, Refusal> {
    let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
    made.map_err(|error| Refusal::MakeDirectory(path.to_owned(), error))?;
    Ok(path)
}

fn spawn(command: &mut Command, program: &str) -> Result<Child, Refusal> {
    command.spawn().map_err(|error| match error.kind() {
        _ if let Some((step, errno)) = Step::from_error(&error) => Refusal::Step(step, errno),
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
    if Path::new(home).is_dir() { home } else { "/" }
}
