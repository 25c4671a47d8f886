//! Serves one client: the copy of its source, from where an earlier call has ended.
//!
//! Invariant: the messages are those of the contract, in its order; the client continues an earlier
//! call only if the file begins with what it has received.
//! Failure: the last message is a status; a client that has left gets none.

use nodeapi::v1;
use nodeapi::v1::export_event::Event;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::file::Reader;
use super::{CLIENT_TIMEOUT, Error, Exports, Requested};
use crate::images::Digest;

/// Messages that wait for the client to read.
const BACKLOG: usize = 4;

/// What a client has of an earlier call.
#[derive(Debug, Clone, Copy)]
pub(in crate::node) struct Received {
    /// Bytes from the beginning of the file.
    pub(in crate::node) bytes: u64,
    /// Their digest.
    pub(in crate::node) digest: Digest,
}

type Message = Result<v1::ExportEvent, Status>;

/// Where the messages of a client go.
pub(super) struct Client(mpsc::Sender<Message>);

/// Begins to serve a client.
pub(in crate::node) fn stream(
    exports: Exports,
    requested: Requested,
    received: Option<Received>,
    stop: CancellationToken,
) -> ReceiverStream<Message> {
    let (sender, receiver) = mpsc::channel(BACKLOG);
    tokio::spawn(async move {
        let client = Client(sender);
        let source = requested.source();
        let current = exports.arrive(source);
        let disks = &exports.0.disks;
        let is_there = source.is_there(disks).await;
        let ended = tokio::select! {
            sent = exports.serve(&requested, received, &client) => sent,
            () = client.0.closed() => Err(Error::Left),
            () = current.cancelled() => Err(Error::Replaced(source)),
            () = source.removal(disks), if is_there => Err(Error::Deleted(source)),
            () = stop.cancelled() => Err(Error::Stopping),
        };
        exports.leave(source, current);
        match ended {
            Ok(bytes) => tracing::info!(%source, bytes, "disk exported"),
            Err(error) => {
                tracing::info!(%source, error = crate::one_line(&error), "disk not exported");
                let status = Err(error.status());
                // One that reads nothing need not learn why.
                let _ = timeout(CLIENT_TIMEOUT, client.0.send(status)).await;
            }
        }
    });
    ReceiverStream::new(receiver)
}

impl Exports {
    /// Sends all; returns how many bytes the client has got now.
    async fn serve(
        &self,
        requested: &Requested,
        received: Option<Received>,
        client: &Client,
    ) -> Result<u64, Error> {
        let _turn = self.0.turns.lock(&requested.source()).await;
        let _place = self.0.places.try_acquire().map_err(|_| Error::Crowded)?;
        let path = self.copy(requested, client).await?;
        let mut file = Reader::open(&path).await?;
        if let Some(received) = received.filter(|one| one.bytes <= file.size()) {
            let mut pieces = 0_u32;
            while file.next(received.bytes).await?.is_some() {
                pieces += 1;
                if pieces.is_multiple_of(256) {
                    client.preparing(100).await?;
                }
            }
            if file.digest() != received.digest {
                file = Reader::open(&path).await?;
            }
        }
        let size_bytes = file.size();
        let offset = file.at();
        let begin = v1::ExportBegin { size_bytes, offset };
        client.send(Event::Begin(begin)).await?;
        while let Some(piece) = file.next(u64::MAX).await? {
            client.send(Event::Data(piece.into())).await?;
        }
        let sha256 = file.digest().hex();
        client.send(Event::End(v1::ExportEnd { sha256 })).await?;
        Ok(size_bytes - offset)
    }
}

impl Client {
    /// How far the copy is.
    pub(super) async fn preparing(&self, percent: u8) -> Result<(), Error> {
        self.send(Event::PreparingPercent(percent.into())).await
    }

    async fn send(&self, event: Event) -> Result<(), Error> {
        let event = v1::ExportEvent { event: Some(event) };
        let sent = timeout(CLIENT_TIMEOUT, self.0.send(Ok(event))).await;
        sent.map_err(|_| Error::Stalled)?.map_err(|_| Error::Left)
    }
}
