//! Sends a file to a node, again and again until it is an image there.
//!
//! Invariant: the file has a boot sector and content of its own; the node says where it continues.
//! Failure: see the parent.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nodeapi::v1::upload_event::Event;
use nodeapi::v1::upload_request::Part;
use nodeapi::v1::{UploadBegin, UploadRequest};
use tokio::sync::mpsc::{self, Sender};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use super::export::sum;
use super::{End, WITHIN};
use crate::{NodeApi, eventually, in_time};

/// Between two messages.
const MESSAGE: Duration = Duration::from_secs(120);
/// Of the file.
const BYTES: usize = 6 << 20;
/// Of a message.
const CHUNK: usize = 256 << 10;
/// Where a disk says that it boots.
const SIGNATURE: std::ops::Range<usize> = 510..512;

pub(super) async fn run(dir: PathBuf, number: u32, file: PathBuf) -> End {
    let sent = send(&dir, number, &file).await;
    let _ = fs::remove_file(&file);
    sent.unwrap_or_else(|error| End::Wrong(format!("upload {number}: {error:#}")))
}

async fn send(dir: &Path, number: u32, file: &Path) -> Result<End> {
    let bytes = content(number);
    fs::write(file, &bytes)?;
    let begin = UploadBegin {
        name: format!("vmlet.dev/upload.invalid/default/chaos-{number}:1"),
        size_bytes: bytes.len() as u64,
        sha256: sum(file)?,
    };
    let socket = dir.join("run/node/node.sock");
    eventually(WITHIN, "a file is uploaded", || {
        attempt(&socket, &begin, &bytes)
    })
    .await
}

async fn attempt(socket: &Path, begin: &UploadBegin, bytes: &[u8]) -> Result<End> {
    let node = NodeApi::connect(socket).await?;
    let (parts, requests) = mpsc::channel(4);
    let mut parts = Some(parts);
    pass(parts.as_ref(), Part::Begin(begin.clone())).await?;
    let mut client = node.node.clone();
    let events = client.upload_image(ReceiverStream::new(requests));
    let mut events = match events.await {
        Ok(events) => events.into_inner(),
        Err(status) => return refused(begin, status),
    };
    loop {
        let message = in_time(MESSAGE, "an answer to the upload", async {
            Ok(events.message().await)
        });
        let event = match message.await? {
            Ok(event) => event.context("the upload ended too early")?.event,
            Err(status) => return refused(begin, status),
        };
        match event {
            Some(Event::Offset(offset)) => {
                let rest = bytes.get(usize::try_from(offset)?..).unwrap_or_default();
                for chunk in rest.chunks(CHUNK) {
                    pass(parts.as_ref(), Part::Data(chunk.to_vec())).await?;
                }
                parts = None;
            }
            Some(Event::Image(image)) => return Ok(compared(begin, &image.sha256)),
            _ => {}
        }
    }
}

async fn pass(parts: Option<&Sender<UploadRequest>>, part: Part) -> Result<()> {
    let parts = parts.context("the node requests the file twice")?;
    let part = Some(part);
    in_time(MESSAGE, "the node reads the upload", async {
        Ok(parts.send(UploadRequest { part }).await?)
    })
    .await
}

fn compared(begin: &UploadBegin, image: &str) -> End {
    let UploadBegin { name, sha256, .. } = begin;
    if image == sha256 {
        End::Complete(format!("upload of {name}"))
    } else {
        End::Wrong(format!(
            "{name} was sent as {sha256} and is the image {image}"
        ))
    }
}

/// A node that does not answer may do so later.
fn refused(begin: &UploadBegin, status: Status) -> Result<End> {
    match status.code() {
        Code::InvalidArgument | Code::FailedPrecondition | Code::DataLoss => {
            Ok(End::Wrong(format!("{}: {status}", begin.name)))
        }
        _ => bail!(status),
    }
}

fn content(number: u32) -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    fastrand::Rng::with_seed(number.into()).fill(&mut bytes);
    bytes[SIGNATURE].copy_from_slice(&[0x55, 0xaa]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_with_other_bytes_is_found() {
        let begin = UploadBegin {
            sha256: "a".repeat(64),
            ..UploadBegin::default()
        };
        assert!(matches!(compared(&begin, &"b".repeat(64)), End::Wrong(_)));
        assert!(matches!(
            compared(&begin, &"a".repeat(64)),
            End::Complete(_)
        ));
        assert!(matches!(
            refused(&begin, Status::data_loss("x")),
            Ok(End::Wrong(_))
        ));
        assert!(refused(&begin, Status::unavailable("x")).is_err());
    }
}
