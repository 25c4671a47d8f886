//! One module per verb; each parses its arguments, calls the daemon and prints.
//!
//! Invariant: a command connects only after its arguments have been checked.
//! Failure: errors go up to `main`, which prints them once.

pub(crate) mod backup;
pub(crate) mod clone;
pub(crate) mod completion;
pub(crate) mod console;
pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod doctor;
mod each;
pub(crate) mod events;
pub(crate) mod export;
mod follow;
pub(crate) mod group;
pub(crate) mod image;
pub(crate) mod import;
pub(crate) mod list;
pub(crate) mod logs;
pub(crate) mod machine_console;
pub(crate) mod machine_logs;
pub(crate) mod node_export;
pub(crate) mod node_images;
pub(crate) mod node_manifests;
pub(crate) mod node_pull;
pub(crate) mod node_upload;
mod openssh;
pub(crate) mod port_forward;
pub(crate) mod power;
mod progress;
pub(crate) mod ps;
pub(crate) mod publish;
pub(crate) mod recover;
mod requested;
pub(crate) mod restore;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod scp;
pub(crate) mod snapshot;
pub(crate) mod ssh;
pub(crate) mod ssh_config;
pub(crate) mod status;
pub(crate) mod stop;
mod transfer;
pub(crate) mod trial;
pub(crate) mod uninstall;

use std::io::{ErrorKind, Write, stdout};
use std::process::ExitCode;

use crate::args::{Args, Command, NodeCommand};
use crate::console::ConsoleError;
use crate::context::Endpoint;
use crate::logs::LogError;

/// Exit code of a run that the user broke off, as shells give it for Ctrl-C.
const INTERRUPTED: u8 = 130;

/// Runs the chosen command.
pub(crate) async fn dispatch(args: Args) -> anyhow::Result<ExitCode> {
    let endpoint = &args.node.endpoint;
    match args.command {
        Command::List(args) => Box::pin(list::run(&args)).await,
        Command::Status(args) => Box::pin(status::run(&args)).await,
        Command::Events(args) => Box::pin(events::run(&args)).await,
        Command::Logs(args) => machine_logs::run(&args).await,
        Command::Image(args) => image::run(&args).await,
        Command::Create(args) => Box::pin(create::run(&args)).await,
        Command::Import(args) => Box::pin(import::run(&args)).await,
        Command::Group(args) => Box::pin(group::run(&args)).await,
        Command::Start(args) => Box::pin(power::start(&args)).await,
        Command::Stop(args) => Box::pin(power::stop(&args)).await,
        Command::Restart(args) => Box::pin(power::restart(&args)).await,
        Command::Suspend(args) => Box::pin(power::suspend(&args)).await,
        Command::Resume(args) => Box::pin(power::resume(&args)).await,
        Command::Pause(args) => Box::pin(power::pause(&args)).await,
        Command::Unpause(args) => Box::pin(power::unpause(&args)).await,
        Command::Delete(args) => Box::pin(delete::run(&args)).await,
        Command::Export(args) => Box::pin(export::run(&args)).await,
        Command::Publish(args) => Box::pin(publish::run(&args)).await,
        Command::Recover(args) => Box::pin(recover::run(&args)).await,
        Command::Snapshot(args) => Box::pin(snapshot::run(&args)).await,
        Command::Snapshots(args) => snapshot::list::run(&args).await,
        Command::Revert(args) => Box::pin(snapshot::revert::run(&args)).await,
        Command::Clone(args) => Box::pin(clone::run(&args)).await,
        Command::Backup(args) => backup::run(&args).await,
        Command::Restore(args) => Box::pin(restore::run(&args)).await,
        Command::Console(args) => Box::pin(machine_console::run(&args)).await,
        Command::PortForward(args) => Box::pin(port_forward::run(&args)).await,
        Command::Ssh(args) => Box::pin(ssh::run(&args)).await,
        Command::Scp(args) => Box::pin(scp::run(&args)).await,
        Command::SshConfig(args) => Box::pin(ssh_config::run(&args)).await,
        Command::Version => {
            print(concat!("vmletctl ", env!("CARGO_PKG_VERSION"), "\n"))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Try(args) => trial::run(&args).await,
        Command::Uninstall(args) => uninstall::run(&args).await,
        Command::Completion(args) => completion::run(&args),
        Command::Node(command) => node(endpoint, command).await,
        Command::Run(args) => node(endpoint, NodeCommand::Run(args)).await,
        Command::Ps(args) => node(endpoint, NodeCommand::Ps(args)).await,
        Command::Images(args) => node(endpoint, NodeCommand::Images(args)).await,
        Command::Pull(args) => node(endpoint, NodeCommand::Pull(args)).await,
        Command::Rm(args) => node(endpoint, NodeCommand::Rm(args)).await,
        Command::Doctor(args) => node(endpoint, NodeCommand::Doctor(args)).await,
    }
}

async fn node(endpoint: &Endpoint, command: NodeCommand) -> anyhow::Result<ExitCode> {
    match command {
        NodeCommand::Run(args) => run::run(endpoint, args).await,
        NodeCommand::Ps(args) => ps::run(endpoint, &args).await,
        NodeCommand::Logs(args) => logs::run(endpoint, &args).await,
        NodeCommand::Console(args) => console::run(endpoint, &args).await,
        NodeCommand::Stop(args) => stop::run(endpoint, &args).await,
        NodeCommand::Rm(args) => rm::run(endpoint, &args).await,
        NodeCommand::Images(args) => node_images::run(endpoint, &args).await,
        NodeCommand::Pull(args) => node_pull::run(endpoint, &args).await,
        NodeCommand::ExportDisk(args) => node_export::run(&args).await,
        NodeCommand::UploadImage(args) => node_upload::run(&args).await,
        NodeCommand::Manifests(args) => node_manifests::run(&args).await,
        NodeCommand::Doctor(args) => doctor::run(endpoint, &args).await,
    }
}

/// What the process exits with after an error.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<run::RunError>() {
        Some(run::RunError::Interrupted) => INTERRUPTED,
        _ => 1,
    }
}

/// A result that could not be printed.
#[derive(Debug, thiserror::Error)]
#[error("print the result")]
struct PrintError(#[source] std::io::Error);

/// YAML without folded lines: a key or a message stays in one piece.
fn yaml<T: serde::Serialize>(value: &T) -> Result<String, serde_saphyr::ser::Error> {
    let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
    serde_saphyr::to_string_with_options(value, options)
}

/// Prints a result.
fn print(text: &str) -> Result<(), PrintError> {
    let mut out = stdout().lock();
    let written = out.write_all(text.as_bytes());
    written.and_then(|()| out.flush()).map_err(PrintError)
}

/// Whether the reader of our output disconnected, which is not an error: it has seen enough.
///
/// A daemon that hangs up breaks a pipe too; only what we print counts.
pub(crate) fn is_unread(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(printing)
        .any(|io| io.kind() == ErrorKind::BrokenPipe)
}

/// The reason, if this error is one of printing.
fn printing<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a std::io::Error> {
    if let Some(PrintError(io)) = error.downcast_ref() {
        return Some(io);
    }
    if let Some(LogError::Print(io)) = error.downcast_ref() {
        return Some(io);
    }
    match error.downcast_ref() {
        Some(ConsoleError::Print(io)) => Some(io),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Error;

    use super::*;

    #[test]
    fn only_a_reader_of_ours_that_went_away_is_no_error() {
        let broken = || Error::from(ErrorKind::BrokenPipe);
        assert!(is_unread(&PrintError(broken()).into()));
        assert!(is_unread(&LogError::Print(broken()).into()));
        assert!(is_unread(
            &anyhow::Error::from(ConsoleError::Print(broken())).context("show")
        ));
        assert!(!is_unread(
            &PrintError(Error::from(ErrorKind::StorageFull)).into()
        ));
        assert!(!is_unread(&ConsoleError::Write(broken()).into()));
        assert!(!is_unread(
            &anyhow::Error::from(broken()).context("Version")
        ));
    }
}
