//! The emulator that libvirt starts: fetches descriptors of taps and disks, then becomes QEMU.
//!
//! Invariant: without a start token (libvirt asking QEMU what it can do) QEMU runs with exactly the
//! arguments given; with one, it runs with every NIC and disk of the sandbox or not at all, and confined to
//! the files of its machine. QEMU never sees our variables, and no descriptor but its own.
//! Failure: one line on standard error that begins with `vmwrapper: `, and exit code 1; libvirt
//! puts the line into the error of the start. A console that cannot be connected is such a line alone:
//! the machine starts with that of libvirt.

mod args;
mod bound;
mod calls;
mod confine;
mod console;
mod directories;
mod disks;
mod files;
mod handoff;

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use confine::Need;
use files::Files;

/// The one-time token of this start.
const TOKEN: &str = "VMLET_START_TOKEN";
/// Where to trade the token for descriptors.
const SOCKET: &str = "VMLET_HANDOFF_SOCKET";
/// Where to collect the disks that are files of volumes and the directories that QEMU serves, if the
/// machine has any.
const DISK_SOCKET: &str = "VMLET_DISK_SOCKET";
/// The real QEMU, when it is not [`DEFAULT_EMULATOR`].
const EMULATOR: &str = "VMLET_EMULATOR";

/// Where to collect the files of the console, if the serial port is to be there and not at libvirt's
/// socket.
const CONSOLE: &str = "VMLET_CONSOLE_SOCKET";

/// `on`, as without it: QEMU is confined by Landlock where the kernel has it. `off`: it is not.
/// `require`: it does not start without.
const LANDLOCK: &str = "VMLET_LANDLOCK";
/// Variable with the directory of layers of the root disk that are made while the machine runs.
const LAYERS: &str = "VMLET_LAYERS";

/// Variable with the most bytes of a file that QEMU writes.
const FILE_SIZE: &str = "VMLET_FILE_SIZE";

const DEFAULT_EMULATOR: &str = "/usr/bin/qemu-system-x86_64";

/// What the whole hand-off may take.
const DEADLINE: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{0} is not set, or not as it should be")]
    Variable(&'static str),
    #[error("hand-off of network descriptors")]
    Handoff(#[source] handoff::Error),
    #[error("hand-off of files")]
    Files(#[from] files::Error),
    #[error("pass a descriptor on")]
    Inherit(#[source] fdpass::Error),
    #[error(transparent)]
    Confine(#[from] confine::Error),
    #[error("failed to bound the files of the emulator")]
    Bound(#[source] nix::Error),
    #[error("failed to forbid system calls")]
    Calls(#[from] libseccomp::error::SeccompError),
    #[error("execute {path}")]
    Execute {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

fn main() -> ExitCode {
    let Err(error) = run();
    report(&error);
    ExitCode::FAILURE
}

fn report(error: &dyn std::error::Error) {
    eprintln!("vmwrapper: {}", one_line(error));
}

/// Becomes QEMU; returns only when that fails.
fn run() -> Result<std::convert::Infallible, Error> {
    let token = std::env::var_os(TOKEN);
    let (nics, files) = match &token {
        None => (Vec::new(), Files::default()),
        Some(token) => (fetch(token)?, fetch_files()?),
    };
    // From here to exec only what is closed by it is opened, so these are the only descriptors that
    // QEMU inherits beyond those it got from libvirt; its standard streams may be replaced.
    for nic in &nics {
        fdpass::clear_cloexec(nic.tap.as_fd()).map_err(Error::Inherit)?;
    }
    for directory in &files.directories {
        fdpass::clear_cloexec(directory.file.as_fd()).map_err(Error::Inherit)?;
    }
    let path = std::env::var_os(EMULATOR).unwrap_or_else(|| DEFAULT_EMULATOR.into());
    let mut arguments = disks::apply(std::env::args_os().skip(1).collect(), &files.disks)?;
    if token.is_some() {
        connect_console(&mut arguments);
        confine::close_directories(&arguments)?;
        if let Some(need) = landlock()? {
            let layers = std::env::var_os(LAYERS).map(PathBuf::from);
            let granted = confine::Granted {
                served: &files.directories,
                layers: layers.as_deref(),
            };
            confine::restrict(path.as_ref(), &arguments, &granted, need)?;
        }
        if let Some(most) = file_size()? {
            bound::files(most).map_err(Error::Bound)?;
        }
        if files.directories.is_empty() {
            calls::forbid()?;
        }
    }
    let source = Command::new(&path)
        .args(arguments)
        .args(args::network(&nics))
        .args(directories::arguments(&files.directories))
        .env_remove(TOKEN)
        .env_remove(SOCKET)
        .env_remove(DISK_SOCKET)
        .env_remove(EMULATOR)
        .env_remove(LANDLOCK)
        .env_remove(LAYERS)
        .env_remove(FILE_SIZE)
        .env_remove(CONSOLE)
        .exec();
    Err(Error::Execute {
        path: path.into(),
        source,
    })
}

/// Puts the serial port at the files of the daemon. Otherwise libvirt's socket serves it: the machine
/// matters more.
fn connect_console(arguments: &mut [OsString]) {
    let Some(socket) = std::env::var_os(CONSOLE) else {
        return;
    };
    let console = console::fetch(socket.as_ref(), DEADLINE);
    let connected = console.and_then(|console| console.connect(arguments));
    connected.unwrap_or_else(|error| report(&error));
}

/// How much Landlock is needed; `None`: QEMU is not confined by it.
fn landlock() -> Result<Option<Need>, Error> {
    match std::env::var_os(LANDLOCK) {
        None => Ok(Some(Need::Available)),
        Some(value) if value == "on" => Ok(Some(Need::Available)),
        Some(value) if value == "off" => Ok(None),
        Some(value) if value == "require" => Ok(Some(Need::Required)),
        Some(_) => Err(Error::Variable(LANDLOCK)),
    }
}

/// The most bytes of a file; `None`: any number.
fn file_size() -> Result<Option<u64>, Error> {
    let Some(value) = std::env::var_os(FILE_SIZE) else {
        return Ok(None);
    };
    let bytes = value.to_str().and_then(|text| text.parse().ok());
    bytes.map(Some).ok_or(Error::Variable(FILE_SIZE))
}

fn fetch(token: &OsStr) -> Result<Vec<handoff::Nic>, Error> {
    let token = token
        .to_str()
        .filter(|t| !t.is_empty())
        .ok_or(Error::Variable(TOKEN))?;
    let socket: OsString = std::env::var_os(SOCKET)
        .filter(|s| !s.is_empty())
        .ok_or(Error::Variable(SOCKET))?;
    handoff::fetch(socket.as_ref(), token, DEADLINE).map_err(Error::Handoff)
}

fn fetch_files() -> Result<Files, Error> {
    match std::env::var_os(DISK_SOCKET) {
        None => Ok(Files::default()),
        Some(socket) => Ok(files::fetch(socket.as_ref(), DEADLINE)?),
    }
}

/// The error with its causes, on one line whatever they say.
fn one_line(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |e| e.source());
    let text = causes
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ");
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(plain).take(1000).collect()
}
