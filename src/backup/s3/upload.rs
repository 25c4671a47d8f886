//! Uploads of files.
//!
//! Invariant: an object is there only when all of it is stored: a file that is longer than a part is uploaded in parts, of
//! which the server makes an object at the end. One part of a file is in memory at a time, and the parts of all files
//! together have a bound.
//! Failure: [`Error`]; an upload that was not completed is aborted, now or by [`abort_all`](Client::abort_all).

use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;
use rusty_s3::Method;

use super::answers::{completion, upload_id};
use super::{Call, Client, Error, MEMORY, Result};
use crate::backup::copy::{Copied, Input, Named};
use crate::backup::{Original, Step};
use crate::files;

/// The least that a part has, but for the last one.
const PART: u64 = 8 << 20;

/// The most parts of one upload, and some in reserve.
const PARTS: u64 = 9_990;

/// Parts have whole MiB.
const MIB: u64 = 1 << 20;

/// The longest ID of an upload in bytes.
const ID: usize = 1024;

impl Client {
    /// Stores a file as an object.
    pub(in crate::backup) async fn upload(
        &self,
        key: &str,
        original: Original,
        step: Step<'_>,
    ) -> Result<Copied> {
        let opened = blocking(move || {
            let path = original.path;
            let file = File::open(&path).map_err(files::failed("open", &path))?;
            let is = file.metadata().map_err(files::failed("look at", &path))?;
            Ok((Named { file, path }, is.len()))
        });
        let (file, bytes) = opened.await?;
        let Some(part) = part_size(bytes) else {
            let target = self.target.clone();
            return Err(Error::Large { target, bytes });
        };
        let input = Input::new(file, bytes);
        // One of just a part may have grown: what is read beyond shows it.
        let copied = if bytes < part {
            self.upload_whole(key, input, part, step).await?
        } else {
            self.upload_parts(key, input, part, step).await?
        };
        let stored = self.length(key).await?;
        if stored != Some(copied.bytes) {
            let call = Call::new("write", Method::Put, key);
            let bytes = copied.bytes;
            let reason = format!("{bytes} bytes were written, and the server has {stored:?}");
            return Err(self.failed(&call, reason));
        }
        Ok(copied)
    }

    async fn upload_whole(
        &self,
        key: &str,
        input: Input,
        part: u64,
        step: Step<'_>,
    ) -> Result<Copied> {
        let _memory = self.memory(part).await?;
        let (input, body) = read(input, part).await?;
        let length = body.len() as u64;
        self.put(key, body).await?;
        step(length);
        Ok(input.end())
    }

    async fn upload_parts(
        &self,
        key: &str,
        input: Input,
        part: u64,
        step: Step<'_>,
    ) -> Result<Copied> {
        // Some servers list uploads by whole keys alone.
        self.abort_all(key, |upload| upload == key).await?;
        let call = Call::new("write", Method::Post, key).with("uploads", "1");
        let begun = self.call(&call).await?.ok_or_else(|| self.odd(&call))?;
        let id = upload_id(&begun.text()).map_err(|reason| self.failed(&call, reason))?;
        if id.is_empty() || id.len() > ID {
            return Err(self.failed(&call, "the ID of the upload is too long".to_owned()));
        }
        let sent = self.send_parts(key, &id, input, part, step).await;
        if let Err(error) = &sent
            && !matches!(error, Error::Hung(_))
        {
            // The error is what counts; what stays is removed by the next attempt.
            let _ = self.abort(key, &id).await;
        }
        sent
    }

    async fn send_parts(
        &self,
        key: &str,
        id: &str,
        mut input: Input,
        part: u64,
        step: Step<'_>,
    ) -> Result<Copied> {
        let mut etags = Vec::new();
        loop {
            let _memory = self.memory(part).await?;
            let (rest, body) = read(input, part).await?;
            input = rest;
            let length = body.len() as u64;
            if length == 0 {
                break;
            }
            let number = (etags.len() + 1).to_string();
            let call = Call::new("write", Method::Put, key)
                .with("partNumber", number)
                .with("uploadId", id)
                .body(body);
            let answered = self.call(&call).await?.ok_or_else(|| self.odd(&call))?;
            let etag = answered.etag().map(str::to_owned);
            let none = || {
                self.failed(
                    &call,
                    "the part that was stored has no entity tag".to_owned(),
                )
            };
            etags.push(etag.ok_or_else(none)?);
            step(length);
            faultpoint::point("backup.part");
        }
        self.complete(key, id, &etags).await?;
        Ok(input.end())
    }

    /// Makes an object of the parts. What was completed already, by an attempt whose answer was lost, is not there any more:
    /// its length shows it.
    async fn complete(&self, key: &str, id: &str, etags: &[String]) -> Result<()> {
        let body = Bytes::from(completion(etags));
        let call = Call::new("complete", Method::Post, key)
            .with("uploadId", id)
            .body(body);
        self.call(&call).await.map(drop)
    }

    /// Removes what was uploaded; success when there is no such upload.
    pub(super) async fn abort(&self, key: &str, id: &str) -> Result<()> {
        let call = Call::new("abort the upload of", Method::Delete, key).with("uploadId", id);
        self.call(&call).await.map(drop)
    }

    /// The right to have a part in memory.
    pub(in crate::backup) async fn memory(
        &self,
        bytes: u64,
    ) -> Result<tokio::sync::OwnedSemaphorePermit> {
        let mib = u32::try_from(bytes.div_ceil(MIB)).unwrap_or(u32::MAX);
        let granted = Arc::clone(&self.memory).acquire_many_owned(mib).await;
        granted.map_err(|error| Error::Aborted(error.to_string()))
    }
}

/// The next part.
async fn read(mut input: Input, part: u64) -> Result<(Input, Bytes)> {
    blocking(move || {
        let mut buffer = vec![0; usize::try_from(part).unwrap_or(usize::MAX)];
        let filled = input.read(&mut buffer)?;
        buffer.truncate(filled);
        Ok((input, Bytes::from(buffer)))
    })
    .await
}

/// Works on a file of the node.
pub(in crate::backup) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let worked = tokio::task::spawn_blocking(work).await;
    worked.unwrap_or_else(|error| Err(Error::Aborted(error.to_string())))
}

/// How much of a file one part has; none: no upload has so many parts.
fn part_size(bytes: u64) -> Option<u64> {
    let least = bytes.div_ceil(PARTS).next_multiple_of(MIB).max(PART);
    (least <= MEMORY as u64 * MIB).then_some(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_grow_with_the_file_up_to_what_may_be_in_memory() {
        assert_eq!(part_size(0), Some(PART));
        assert_eq!(part_size(PART * PARTS), Some(PART));
        assert_eq!(part_size(PART * PARTS + 1), Some(PART + MIB));
        let most = MEMORY as u64 * MIB * PARTS;
        assert_eq!(part_size(most), Some(MEMORY as u64 * MIB));
        assert_eq!(part_size(most + 1), None);
        assert_eq!(part_size(u64::MAX), None);
    }
}
