//! Calls about one image.
//!
//! Invariant: an image is sent where its hints lead; without any, the primary's answer takes
//! precedence over others'. An image is removed wherever it is, or the call fails.
//! Failure: `InvalidArgument` for hints that contradict each other; `Unavailable` when a runtime
//! that the hints name, or that may have the image to be removed, is away.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use http::Response;
use prost::Message;
use tonic::Status;

use super::answer::pass;
use super::{Call, Proxy};
use crate::backend::Answer;
use crate::routes::{PRIMARY, Unclear};
use crate::state::{BackendIndex, Kind, Owner};
use crate::wire::{Body, FirstStatus, Image, ImageRequest, Opening, PullImage};

const STATUS: &str = "/runtime.v1.ImageService/ImageStatus";

impl Proxy {
    /// Passes the call to the runtime of the hints, else to the one that has the image, the primary first.
    pub(super) async fn image_status(
        &self,
        call: &Call,
        message: &Bytes,
    ) -> Result<Response<Body>, Status> {
        let image = named(message);
        if let Some(index) = self.image_owner(&image)? {
            let answer = self.query(index, call.name, call.copy(message)).await;
            return Ok(answer.map_or_else(|e| e.into_response(self.backend(index)), pass));
        }
        let first = match self.query(PRIMARY, call.name, call.copy(message)).await {
            Ok(answer) => answer,
            Err(failure) => return Ok(failure.into_response(&self.primary)),
        };
        if has_image(&first) {
            return Ok(pass(first));
        }
        let others = self.secondaries.iter().map(|secondary| {
            let request = call.copy(message);
            self.query(secondary.backend.index, call.name, request)
        });
        // One that is away has it or not: a pull follows, which goes where the pod runs.
        let others = join_all(others).await.into_iter().flatten();
        Ok(pass(others.into_iter().find(has_image).unwrap_or(first)))
    }

    /// Passes the call to the runtime of the hints or of the pod, else to the primary.
    pub(super) async fn pull_image(
        self: &Arc<Self>,
        call: &Call,
        opening: Opening,
        message: &Bytes,
    ) -> Result<Response<Body>, Status> {
        let Ok(pull) = PullImage::decode(message.clone()) else {
            return Ok(self.forward(PRIMARY, call, opening.into(), None).await);
        };
        let image = pull.image.unwrap_or_default();
        let mut index = self.routes.image(&image).map_err(|e| invalid(&e))?;
        if let Some(sandbox) = &pull.sandbox {
            if index.is_none() {
                index = self.routes.annotated(sandbox).map_err(|e| invalid(&e))?;
            }
            index = index.or_else(|| self.memory.owner_of_uid(sandbox.uid()));
        }
        let index = index.unwrap_or(PRIMARY);
        let learn = self.learn_id(Kind::Image, index);
        Ok(self.forward(index, call, opening.into(), learn).await)
    }

    /// Removes an image from every runtime that has it.
    pub(super) async fn remove_image(
        &self,
        call: &Call,
        message: &Bytes,
    ) -> Result<Response<Body>, Status> {
        let image = named(message);
        let holders = match self.image_owner(&image)? {
            Some(index) => vec![index],
            None => self.image_holders(call, message).await?,
        };
        // Removing files may take long: the only deadline is that of the caller.
        let removals = holders.iter().map(|index| async move {
            let backend = self.backend(*index);
            (*index, backend.unary(call.name, call.copy(message)).await)
        });
        let mut first = None;
        for (index, answer) in join_all(removals).await {
            match answer {
                Ok(answer) => first = first.or(Some(answer)),
                Err(failure) => return Ok(failure.into_response(self.backend(index))),
            }
        }
        self.memory.forget(Kind::Image, &image.name);
        first
            .map(pass)
            .ok_or_else(|| Status::internal("no runtime to ask"))
    }

    /// The runtime that hints, or the id, name for certain.
    fn image_owner(&self, image: &Image) -> Result<Option<BackendIndex>, Status> {
        let hint = self.routes.image(image).map_err(|e| invalid(&e))?;
        Ok(hint.or_else(|| {
            let owner = is_id(&image.name).then(|| self.memory.owner(Kind::Image, &image.name));
            match owner {
                Some(Owner::One(index)) => Some(index),
                _ => None,
            }
        }))
    }

    /// All that have the image; the primary when none has.
    async fn image_holders(
        &self,
        call: &Call,
        message: &Bytes,
    ) -> Result<Vec<BackendIndex>, Status> {
        let everyone = std::iter::once(PRIMARY);
        let everyone = everyone.chain(self.secondaries.iter().map(|s| s.backend.index));
        let answers = join_all(everyone.map(|index| async move {
            let request = call.other(STATUS, message);
            (index, self.query(index, "find", request).await)
        }));
        let mut holders = Vec::new();
        for (index, answer) in answers.await {
            match answer {
                Ok(answer) if has_image(&answer) => holders.push(index),
                Ok(_) => {}
                Err(failure) if self.may_hold(index, Kind::Image) => {
                    return Err(self.backend(index).unavailable(&failure.reason()));
                }
                Err(_) => {}
            }
        }
        if holders.is_empty() {
            holders.push(PRIMARY);
        }
        Ok(holders)
    }
}

fn invalid(unclear: &Unclear) -> Status {
    Status::invalid_argument(unclear.to_string())
}

fn named(message: &Bytes) -> Image {
    let request = ImageRequest::decode(message.clone()).unwrap_or_default();
    request.image.unwrap_or_default()
}

fn has_image(answer: &Answer) -> bool {
    let found = FirstStatus::decode(answer.message.clone());
    found.is_ok_and(|found| found.status.is_some_and(|image| !image.id.is_empty()))
}

/// Whether this is an image's id, or the beginning of one, and no name.
fn is_id(name: &str) -> bool {
    let digits = name.strip_prefix("sha256:").unwrap_or(name);
    let hex = |c: u8| matches!(c, b'0'..=b'9' | b'a'..=b'f');
    digits.len() >= 12 && digits.bytes().all(hex)
}

#[cfg(test)]
mod tests {
    use super::is_id;

    #[test]
    fn an_id_is_distinguished_from_a_name() {
        let digits = "0123456789abcdef";
        assert!(is_id(digits));
        assert!(is_id(&format!("sha256:{digits}")));
        for name in [
            "busybox",
            "deadbeef",
            "docker.io/library/x@sha256:0123456789abcdef",
        ] {
            assert!(!is_id(name), "{name}");
        }
    }
}
