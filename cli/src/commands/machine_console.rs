//! `console`: the serial console of a machine of the cluster, or of a VM pod, through the API server.
//!
//! Invariant: the user's terminal is as before when the command ends. A terminal gets the console back after each
//! interruption; input of a pipe is sent to the first connection alone, since a part of it may be lost with that.
//! Failure: a right that is missing, a name that nothing has, a machine that is off, and input of a pipe that may not
//! have been sent whole.

use std::fmt::Display;
use std::io::stdin;
use std::os::fd::AsFd;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use crds::VirtualMachine;
use crds::vm::PrintableStatus as Word;
use kube::client::Connection;
use tokio::io::{duplex, split};
use tokio::time::{sleep, timeout};

use crate::cluster::ClusterArgs;
use crate::cluster::reach::{Broken, Ended, Line, Reach, ReachError, Seen, carry};
use crate::console::{self, End, Escape, Input};
use crate::interrupt::Interrupts;
use crate::terminal::RawMode;

/// A connection that lasts so long has reached the console.
const SETTLED: Duration = Duration::from_secs(1);
/// Pauses before attempts to connect again, each twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Time for the last keys to be sent.
const FLUSH: Duration = Duration::from_secs(2);
/// Bytes of each direction that wait for us.
const BUFFER: usize = 64 * 1024;

/// Machine whose console to open.
#[derive(Debug, Args)]
pub(crate) struct ConsoleArgs {
    /// Name of the virtual machine, or of a VM pod.
    name: String,
    /// Only show the output of the guest.
    #[arg(long)]
    no_input: bool,
    /// Key that leaves: ^ and a letter, one character, or none.
    #[arg(
        long,
        value_name = "KEY",
        default_value = "^]",
        conflicts_with = "no_input"
    )]
    escape: Escape,
    /// Container of the pod, if it has several.
    #[arg(short, long, value_name = "NAME")]
    container: Option<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) async fn run(args: &ConsoleArgs) -> anyhow::Result<ExitCode> {
    let reach = Reach::new(&args.cluster, &args.name).await?;
    // What cannot be connected to is an error before the terminal is changed.
    let machine = reach.look::<VirtualMachine>().await?.object();
    let first = match reach
        .attach(args.container.as_deref(), !args.no_input)
        .await
    {
        Err(error) if error.is_passing() => Err(awaited(machine.as_ref(), error)?),
        first => Ok(first?),
    };
    // Until here an interrupt ends the process by itself.
    let mut interrupts = Interrupts::listen()?;
    let raw = if args.no_input {
        None
    } else {
        RawMode::enter(stdin().as_fd()).context("set the terminal to raw mode")?
    };
    let input = match (args.no_input, &raw) {
        (true, _) => Input::None,
        (false, Some(_)) => Input::Keys(console::stdin(), args.escape),
        (false, None) => Input::Pipe(console::stdin()),
    };
    let mut session = Session {
        reach: &reach,
        args,
        is_machine: machine.is_some(),
        was_connected: false,
        input,
        is_raw: raw.is_some(),
        said: String::new(),
    };
    let end = tokio::select! {
        end = session.run(first) => end,
        () = interrupts.next() => Ok(End::Escaped),
    };
    let was_raw = raw.is_some();
    drop(raw);
    match end? {
        End::InputDone => eprintln!("standard input has ended; --no-input shows the output alone"),
        End::Escaped if was_raw => eprintln!(),
        End::Escaped | End::Closed => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// A console that is connected to again and again.
struct Session<'a> {
    reach: &'a Reach,
    args: &'a ConsoleArgs,
    /// As far as the user may read that.
    is_machine: bool,
    /// A connection has reached the console.
    was_connected: bool,
    input: Input,
    is_raw: bool,
    /// What was printed last.
    said: String,
}

/// How one connection has ended.
enum Outcome {
    /// The user has left, or the input has ended.
    Left(End),
    /// The other side has ended it, or the connection was cut.
    Lost { reason: String, was_settled: bool },
}

impl Session<'_> {
    /// Ends when the user leaves, or with an error that no later attempt takes away.
    async fn run(&mut self, first: anyhow::Result<Connection>) -> anyhow::Result<End> {
        let mut next = first;
        let mut pause = FIRST_PAUSE;
        loop {
            let reason = match next {
                Ok(connection) => match self.connected(connection).await? {
                    Outcome::Left(end) => return Ok(end),
                    Outcome::Lost {
                        reason,
                        was_settled,
                    } => {
                        if self.is_pipe() {
                            bail!(
                                "the connection to the console of {} has ended: {reason}; a part of the input may \
                                 not have arrived",
                                self.reach.name
                            );
                        }
                        if was_settled {
                            pause = FIRST_PAUSE;
                        }
                        reason
                    }
                },
                Err(error) if self.is_pipe() => return Err(error),
                Err(error) => format!("{error:#}"),
            };
            self.say(&format!("no console: {reason}; connecting again"));
            tokio::select! {
                () = sleep(pause) => {}
                () = self.input.left() => return Ok(End::Escaped),
            }
            pause = LONGEST_PAUSE.min(2 * pause);
            next = match self.attach().await? {
                Some(next) => next,
                None => return Ok(End::Escaped),
            };
        }
    }

    const fn is_pipe(&self) -> bool {
        matches!(self.input, Input::Pipe(_))
    }

    /// Connects. An error inside is one that may pass; none: the user has left.
    async fn attach(&mut self) -> anyhow::Result<Option<anyhow::Result<Connection>>> {
        let container = self.args.container.as_deref();
        let attached = tokio::select! {
            attached = self.reach.attach(container, !self.args.no_input) => attached,
            () = self.input.left() => return Ok(None),
        };
        match attached {
            Ok(connection) => Ok(Some(Ok(connection))),
            Err(error @ ReachError::NoPod { .. }) if self.is_machine => {
                let machine = self.reach.look::<VirtualMachine>().await;
                Ok(Some(Err(self.absent(machine, error)?)))
            }
            Err(error) if error.is_passing() => Ok(Some(Err(error.into()))),
            Err(error) => Err(error.into()),
        }
    }

    /// Carries one connection to its end.
    async fn connected(&mut self, connection: Connection) -> anyhow::Result<Outcome> {
        let (near, far) = duplex(BUFFER);
        let carrying = tokio::spawn(async move {
            let (from, to) = split(far);
            carry(connection, Line::Console, from, to).await
        });
        let mut out = tokio::io::stdout();
        let mut is_settled = false;
        let greeting = self.greeting();
        let end = {
            let mut session = pin!(console::session(near, &mut self.input, &mut out));
            let mut settling = pin!(sleep(SETTLED));
            loop {
                tokio::select! {
                    end = &mut session => break end?,
                    () = &mut settling, if !is_settled => {
                        is_settled = true;
                        self.was_connected = true;
                        notice(&greeting, self.is_raw);
                        self.said.clear();
                    }
                }
            }
        };
        // A session that is over has dropped its side: what it has written is sent, then the connection ends.
        let carried = match end {
            End::Closed => Some(carrying.await),
            End::Escaped | End::InputDone => timeout(FLUSH, carrying).await.ok(),
        };
        let carried = carried.transpose().context("carry the console")?;
        Ok(match reason(end, carried) {
            None => Outcome::Left(end),
            Some(reason) => Outcome::Lost {
                reason,
                was_settled: is_settled,
            },
        })
    }

    /// What keeps the pod away, in words; an error if no later attempt finds one by itself.
    fn absent(
        &self,
        machine: Result<Seen<VirtualMachine>, ReachError>,
        error: ReachError,
    ) -> anyhow::Result<anyhow::Error> {
        let name = &self.reach.name;
        let machine = match machine {
            Ok(Seen::There(machine)) if self.was_connected => machine,
            Ok(Seen::There(machine)) => return awaited(Some(&machine), error),
            Ok(Seen::Absent) => return Err(error).context(format!("{name} was deleted")),
            Ok(Seen::Hidden) => return Ok(error.into()),
            Err(failed) if failed.is_passing() => return Ok(failed.into()),
            Err(failed) => return Err(failed.into()),
        };
        let state = machine.status.and_then(|status| status.printable_status);
        Ok(match state {
            // A kubelet that has just started does not know its pods yet.
            Some(Word::Running) => anyhow!("the node of {name} does not have its pod yet"),
            Some(word) => anyhow!("{name} does not run, it is {word:?}"),
            None => anyhow!("{name} does not run, it is new"),
        })
    }

    fn greeting(&self) -> String {
        let hint = self.is_raw.then(|| self.args.escape.hint());
        format!(
            "connected to {}{}",
            self.reach.name,
            hint.unwrap_or_default()
        )
    }

    /// Prints what is new.
    fn say(&mut self, text: &str) {
        if self.said != text {
            notice(text, self.is_raw);
            text.clone_into(&mut self.said);
        }
    }
}

/// Why a connection has ended before its time; none: the user has left, or the input was sent whole. Nothing carried:
/// the last input was not sent in time.
fn reason(end: End, carried: Option<Result<Ended, Broken>>) -> Option<String> {
    match (end, carried) {
        (End::Escaped, _) | (End::InputDone, Some(Ok(Ended::Left))) => None,
        (_, None) => Some(format!(
            "the last input was not sent within {} s",
            FLUSH.as_secs()
        )),
        (_, Some(Ok(Ended::Closed | Ended::Left))) => Some("it was closed".to_owned()),
        (_, Some(Ok(Ended::Failed(words)))) => Some(words),
        (_, Some(Err(error))) => Some(format!("{:#}", anyhow::Error::from(error))),
    }
}

/// A line on standard error; a terminal in raw mode needs a return, too.
fn notice(text: impl Display, is_raw: bool) {
    let end = if is_raw { "\r\n" } else { "\n" };
    eprint!("{text}{end}");
}

/// The same error, if there is something that is going to have a console.
fn awaited(machine: Option<&VirtualMachine>, error: ReachError) -> anyhow::Result<anyhow::Error> {
    let ReachError::NoPod { name, .. } = &error else {
        return Ok(error.into());
    };
    let Some(machine) = machine else {
        return Err(error.into());
    };
    match resting(machine) {
        Some(state) => bail!(
            "{name} does not run, it is {state}: `vmletctl start {name}` starts it, `vmletctl status {name}` says more"
        ),
        None => Ok(error.into()),
    }
}

/// The state of a machine that stays without an instance until a user starts it.
fn resting(vm: &VirtualMachine) -> Option<&'static str> {
    match vm.status.as_ref()?.printable_status? {
        Word::Stopped => Some("Stopped"),
        Word::Suspended => Some("Suspended"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn input_of_a_pipe_counts_as_sent_only_when_it_was_sent_whole() {
        let failed = || Some(Ok(Ended::Failed("off".to_owned())));
        let done = |carried| reason(End::InputDone, carried);
        assert_eq!(done(Some(Ok(Ended::Left))), None);
        assert_eq!(done(failed()).as_deref(), Some("off"));
        let lost = [None, Some(Ok(Ended::Closed)), Some(Err(Broken::Silent))];
        for carried in lost {
            let words = format!("{carried:?}");
            assert!(done(carried).is_some(), "{words}");
        }
        // The user who leaves does not wait for the other side.
        assert_eq!(reason(End::Escaped, None), None);
        assert_eq!(reason(End::Escaped, failed()), None);
        assert_eq!(reason(End::Closed, failed()).as_deref(), Some("off"));
    }

    #[test]
    fn a_machine_that_is_off_is_not_waited_for() {
        let state = |status| {
            let vm = serde_json::from_value(json!({
                "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachine",
                "metadata": {"name": "web"}, "spec": {"running": true}, "status": status,
            }));
            resting(&vm.unwrap())
        };
        assert_eq!(
            state(json!({"printableStatus": "Stopped"})),
            Some("Stopped")
        );
        assert_eq!(
            state(json!({"printableStatus": "Suspended"})),
            Some("Suspended")
        );
        assert_eq!(state(json!({"printableStatus": "Starting"})), None);
        assert_eq!(state(json!({})), None);
    }
}
