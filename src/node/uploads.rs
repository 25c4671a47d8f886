//! Receives a file from a client into the image store.
//!
//! Invariant: the messages are those of the contract, in its order; a client that sends nothing for
//! [`CLIENT_TIMEOUT`] is left. What it has sent stays for its next call.
//! Failure: the last message is a status.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use nodeapi::v1;
use nodeapi::v1::upload_event::Event;
use nodeapi::v1::upload_request::Part;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming};

use crate::images::{self, Digest, Image, Images, Receiver, Upload};

/// Time for a client to send or read a message.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);

/// How often a client learns that the daemon works on its file.
const REPORT: Duration = Duration::from_secs(5);

/// Clients that are served at once.
const MOST: usize = 4;

/// Messages that wait for the client to read.
const BACKLOG: usize = 4;

type Message = Result<v1::UploadEvent, Status>;

/// The uploads of this node; clones share them.
#[derive(Debug, Clone)]
pub(super) struct Uploads {
    images: Arc<Images>,
    places: Arc<Semaphore>,
}

impl Uploads {
    pub(super) fn new(images: Arc<Images>) -> Self {
        let places = Arc::new(Semaphore::new(MOST));
        Self { images, places }
    }

    /// Begins to serve a client.
    pub(super) fn stream(
        &self,
        requests: Streaming<v1::UploadRequest>,
        stop: CancellationToken,
    ) -> ReceiverStream<Message> {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        let this = self.clone();
        tokio::spawn(async move {
            let ended = tokio::select! {
                ended = this.serve(requests, &sender) => ended,
                () = sender.closed() => return,
                () = stop.cancelled() => Err(Status::unavailable(
                    "the daemon stops: continue the upload when it has started again",
                )),
            };
            let last = ended.map(|image| {
                Event::Image(v1::UploadedImage {
                    sha256: image.digest.hex(),
                    format: image.format.as_str().to_owned(),
                    virtual_bytes: image.virtual_size,
                })
            });
            let last = last.map(message);
            // One that reads nothing need not learn how it ended.
            let _ = timeout(CLIENT_TIMEOUT, sender.send(last)).await;
        });
        ReceiverStream::new(receiver)
    }

    async fn serve(
        &self,
        mut requests: Streaming<v1::UploadRequest>,
        sender: &mpsc::Sender<Message>,
    ) -> Result<Image, Status> {
        let crowded = |_| {
            Status::resource_exhausted(format!(
                "{MOST} files are being uploaded to this node: try again when one of them is complete"
            ))
        };
        let _place = self.places.try_acquire().map_err(crowded)?;
        let Some(Part::Begin(begin)) = next(&mut requests).await? else {
            return Err(Status::invalid_argument(
                "begin: name, size and digest come first",
            ));
        };
        let digest = Digest::from_hex(&begin.sha256).map_err(|_| {
            Status::invalid_argument("begin.sha256: 64 lower-case hexadecimal digits are needed")
        })?;
        let upload = self.images.upload(&begin.name, begin.size_bytes, digest);
        let receiver = match reporting(sender, upload).await?.map_err(|e| status(&e))? {
            Upload::Present(image) => return Ok(image),
            Upload::Missing(receiver) => receiver,
        };
        let offset = receiver.received().await;
        send(sender, Event::Offset(offset)).await?;
        receive(&receiver, &mut requests).await?;
        let finished = reporting(sender, Box::pin(receiver.finish())).await?;
        finished.map_err(|e| status(&e))
    }
}

/// Does what takes its time, and says so again and again.
async fn reporting<T>(
    sender: &mpsc::Sender<Message>,
    work: impl Future<Output = T>,
) -> Result<T, Status> {
    let mut work = pin!(work);
    let mut reports = interval(REPORT);
    reports.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            done = &mut work => return Ok(done),
            _ = reports.tick() => send(sender, Event::Checking(true)).await?,
        }
    }
}

/// Takes all bytes that are missing.
async fn receive(
    receiver: &Receiver,
    requests: &mut Streaming<v1::UploadRequest>,
) -> Result<(), Status> {
    while receiver.missing().await > 0 {
        match next(requests).await? {
            Some(Part::Data(bytes)) => receiver.append(bytes).await.map_err(|e| status(&e))?,
            Some(Part::Begin(_)) => {
                return Err(Status::invalid_argument("begin: it comes once"));
            }
            None => {
                return Err(Status::cancelled(
                    "the client has sent a part of the file only",
                ));
            }
        }
    }
    Ok(())
}

async fn next(requests: &mut Streaming<v1::UploadRequest>) -> Result<Option<Part>, Status> {
    let message = timeout(CLIENT_TIMEOUT, requests.message()).await;
    let silent = |_| {
        let seconds = CLIENT_TIMEOUT.as_secs();
        Status::deadline_exceeded(format!("the client has sent nothing for {seconds} s"))
    };
    let message = message.map_err(silent)??;
    Ok(message.and_then(|message| message.part))
}

async fn send(sender: &mpsc::Sender<Message>, event: Event) -> Result<(), Status> {
    let sent = timeout(CLIENT_TIMEOUT, sender.send(Ok(message(event)))).await;
    match sent {
        Ok(Ok(())) => Ok(()),
        _ => Err(Status::cancelled("the client reads nothing")),
    }
}

const fn message(event: Event) -> v1::UploadEvent {
    v1::UploadEvent { event: Some(event) }
}

/// As the node API says it.
fn status(error: &images::Error) -> Status {
    use images::Error as E;
    let code = match error {
        E::InvalidName { .. } => Code::InvalidArgument,
        E::NoSpace { .. } | E::Crowded { .. } => Code::ResourceExhausted,
        E::Interrupted(_) | E::Stopping | E::Decoder { .. } => Code::Unavailable,
        E::Digest { .. } => Code::DataLoss,
        E::TooLarge { .. } | E::Content { .. } | E::Format { .. } | E::Convert { .. } => {
            Code::FailedPrecondition
        }
        _ => Code::Internal,
    };
    Status::new(code, crate::one_line(error))
}

#[cfg(test)]
mod tests;
