//! `port-forward`: TCP connections to ports of a guest, through the API server.
//!
//! Invariant: each connection has a connection to the API server of its own, so that one that fails disturbs no
//! other one, and the command outlives every restart of node, pod and machine. At most [`MOST`] exist at once.
//! Failure: a port that cannot be listened on, and a right that is missing, end the command. What fails of one
//! connection is a line on standard error, and a reset for its client, which gets an end only from the guest.

mod spec;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;

use self::spec::{Forward, Port};
use crate::cluster::ClusterArgs;
use crate::cluster::reach::{Broken, Ended, Line, Reach, ReachError, carry};
use crate::interrupt::Interrupts;

/// Connections at once. A node has 128 with one pod.
const MOST: usize = 64;

/// Machine whose ports to reach.
#[derive(Debug, Args)]
pub(crate) struct PortForwardArgs {
    /// Name of the virtual machine, or of a VM pod.
    name: String,
    /// Port of this computer and TCP port of the guest: 8080:80, or 80 for both. Without an address before them,
    /// only programs of this computer can connect; :80 takes a free port.
    #[arg(
        value_name = "[[ADDRESS:]LOCAL:]PORT",
        required_unless_present = "stdio"
    )]
    ports: Vec<Forward>,
    /// Connect standard input and output to this TCP port of the guest, as ProxyCommand of ssh needs it.
    #[arg(long, value_name = "PORT", conflicts_with = "ports")]
    stdio: Option<Port>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) async fn run(args: &PortForwardArgs) -> anyhow::Result<ExitCode> {
    let reach = Reach::new(&args.cluster, &args.name).await?;
    match args.stdio {
        Some(port) => stdio(&reach, port.0).await?,
        None => listen(&reach, &args.ports).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// One connection, with the streams of this process.
async fn stdio(reach: &Reach, port: u16) -> anyhow::Result<()> {
    let connection = reach.forward(port).await?;
    let carried = carry(
        connection,
        Line::Port,
        tokio::io::stdin(),
        tokio::io::stdout(),
    )
    .await;
    ended(carried).with_context(|| connection_to(reach, port))
}

/// The result of one connection.
fn ended(carried: Result<Ended, Broken>) -> anyhow::Result<()> {
    match carried {
        Ok(Ended::Closed | Ended::Left) => Ok(()),
        Ok(Ended::Failed(words)) => bail!("{words}"),
        // The client has gone.
        Err(Broken::Write(_) | Broken::Read(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn connection_to(reach: &Reach, port: u16) -> String {
    format!("connection to port {port} of {}", reach.name)
}

/// Connections of clients, until the user interrupts.
async fn listen(reach: &Reach, ports: &[Forward]) -> anyhow::Result<()> {
    reach.check_port_forward().await?;
    let places = Arc::new(Semaphore::new(MOST));
    let (refuse, mut refused) = mpsc::channel(1);
    let mut listeners = JoinSet::new();
    let mut text = String::new();
    for forward in ports {
        let listener = forward.listen().await?;
        let local = listener
            .local_addr()
            .context("read the address of a socket")?;
        text += &format!("{local} -> port {} of {}\n", forward.port.0, reach.name);
        let port = Listening {
            reach: reach.clone(),
            port: forward.port.0,
            places: Arc::clone(&places),
            refuse: refuse.clone(),
        };
        listeners.spawn(port.serve(listener));
    }
    super::print(&text)?;
    let mut interrupts = Interrupts::listen()?;
    tokio::select! {
        Some(error) = refused.recv() => Err(error.into()),
        Some(ended) = listeners.join_next() => ended.context("accept connections")?,
        () = interrupts.next() => Ok(()),
    }
}

/// One port of this computer.
#[derive(Clone)]
struct Listening {
    reach: Reach,
    port: u16,
    places: Arc<Semaphore>,
    /// Takes what no later connection can change.
    refuse: mpsc::Sender<ReachError>,
}

impl Listening {
    async fn serve(self, listener: TcpListener) -> anyhow::Result<()> {
        loop {
            let accepted = listener.accept().await;
            let stream = accepted.context("accept a connection")?.0;
            let place = match Arc::clone(&self.places).try_acquire_owned() {
                Ok(place) => place,
                Err(_) => {
                    eprintln!(
                        "all {MOST} connections are in use: another one waits until one of them ends"
                    );
                    Arc::clone(&self.places).acquire_owned().await?
                }
            };
            tokio::spawn(self.clone().connected(stream, place));
        }
    }

    async fn connected(self, mut client: TcpStream, _place: OwnedSemaphorePermit) {
        let outcome = match self.reach.forward(self.port).await {
            Ok(connection) => {
                let (from, to) = client.split();
                let carried = carry(connection, Line::Port, from, to).await;
                if !matches!(carried, Ok(Ended::Closed)) {
                    reset(&client);
                }
                ended(carried)
            }
            Err(error) => {
                reset(&client);
                if matches!(error, ReachError::Forbidden { .. }) {
                    // The command ends with the first one.
                    let _ = self.refuse.send(error).await;
                    return;
                }
                Err(error.into())
            }
        };
        if let Err(error) = outcome {
            eprintln!("{}: {error:#}", connection_to(&self.reach, self.port));
        }
    }
}

/// Makes the end of this client's connection an error for it, so that it does not take a part for the whole.
fn reset(client: &TcpStream) {
    // A client that has gone needs none.
    let _ = client.set_zero_linger();
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_client_takes_no_part_for_the_whole() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(address).await.unwrap();
        let mut accepted = listener.accept().await.unwrap().0;
        accepted.write_all(b"half").await.unwrap();
        let mut content = [0; 4];
        client.read_exact(&mut content).await.unwrap();
        reset(&accepted);
        drop(accepted);
        let end = client.read(&mut content).await.unwrap_err();
        assert_eq!(end.kind(), ErrorKind::ConnectionReset);
    }

    #[test]
    fn an_end_without_an_answer_of_the_guest_is_an_error() {
        assert!(ended(Ok(Ended::Closed)).is_ok());
        assert!(ended(Err(Broken::Read(ErrorKind::ConnectionReset.into()))).is_ok());
        assert!(ended(Ok(Ended::Failed("refused".to_owned()))).is_err());
        assert!(ended(Err(Broken::Silent)).is_err());
        assert!(ended(Err(Broken::Unanswered)).is_err());
    }
}
