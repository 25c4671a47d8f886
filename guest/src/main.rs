//! `vmlet-guest`: see the library.
//!
//! Invariant: it runs until the port is lost; the program that started it starts it again.
//! Failure: a sentence on standard error, and exit code 1; 2 for a wrong command line.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use lexopt::Arg::{Long, Short, Value};
use lexopt::ValueExt as _;

const HELP: &str = "\
vmlet-guest: the agent of Vmlet in a guest. It runs the commands of kubectl exec.

Usage: vmlet-guest [--port PATH]

  --port PATH   virtio-serial port [default: /dev/virtio-ports/dev.vmlet.guest.0]
  --version     print the version
  --help        print this text
";

enum Action {
    Serve(PathBuf),
    /// Internal: thaws file systems when an agent is killed.
    Watch {
        agent: u32,
        time: Duration,
        files: Vec<u32>,
    },
    Print(String),
}

fn main() -> ExitCode {
    match action() {
        Ok(Action::Print(text)) => {
            eprintln!("{}", text.trim_end());
            ExitCode::SUCCESS
        }
        Ok(Action::Serve(path)) => {
            let served = guest::Port::open(&path)
                .and_then(|port| guest::serve(&port, &guest::Places::of_guest()));
            match served {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("vmlet-guest: {}: {error}", path.display());
                    ExitCode::FAILURE
                }
            }
        }
        Ok(Action::Watch { agent, time, files }) => match guest::watch(agent, time, &files) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        Err(error) => {
            eprintln!("vmlet-guest: {error}\n\n{HELP}");
            ExitCode::from(2)
        }
    }
}

fn action() -> Result<Action, lexopt::Error> {
    let mut path = PathBuf::from("/dev/virtio-ports").join(guestapi::PORT);
    let mut words = lexopt::Parser::from_env();
    while let Some(word) = words.next()? {
        match word {
            Long("port") => path = words.value()?.into(),
            Long("watchdog") => return watch(&mut words),
            Long("version") | Short('V') => {
                let version = env!("CARGO_PKG_VERSION");
                return Ok(Action::Print(format!("vmlet-guest {version}")));
            }
            Long("help") | Short('h') => return Ok(Action::Print(HELP.to_owned())),
            other => return Err(other.unexpected()),
        }
    }
    Ok(Action::Serve(path))
}

/// The process of the agent, seconds, and its open files.
fn watch(words: &mut lexopt::Parser) -> Result<Action, lexopt::Error> {
    let agent = words.value()?.parse()?;
    let time = Duration::from_secs(words.value()?.parse()?);
    let mut files = Vec::new();
    while let Some(word) = words.next()? {
        match word {
            Value(file) => files.push(file.parse()?),
            other => return Err(other.unexpected()),
        }
    }
    Ok(Action::Watch { agent, time, files })
}
