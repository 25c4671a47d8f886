//! `vmlet-guest`: see the library.
//!
//! Invariant: it runs until the port is lost; whoever started it starts it again.
//! Failure: a sentence on standard error, and exit code 1; 2 for a wrong command line.

use std::path::PathBuf;
use std::process::ExitCode;

use lexopt::Arg::{Long, Short};

const HELP: &str = "\
vmlet-guest: the agent of Vmlet in a guest. It runs the commands of kubectl exec.

Usage: vmlet-guest [--port PATH]

  --port PATH   virtio-serial port [default: /dev/virtio-ports/dev.vmlet.guest.0]
  --version     print the version
  --help        print this text
";

enum Action {
    Serve(PathBuf),
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
