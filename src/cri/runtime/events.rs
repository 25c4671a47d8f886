//! Events of sandboxes and containers.
//!
//! Invariant: a subscription exists before the response begins: a client that lists after the
//! response headers misses nothing.
//! Failure: the stream ends with `ResourceExhausted` for a client that reads too slowly, and with
//! `Unavailable` when the daemon stops.

use std::sync::Arc;

use cri_proto::v1;
use cri_proto::v1::ContainerEventType as Kind;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::BoxStream;

use super::Runtime;
use crate::cri::convert;
use crate::events::{Change, Event};
use crate::images::Images;

impl Runtime {
    pub(super) fn get_container_events(
        &self,
        _: v1::GetEventsRequest,
    ) -> BoxStream<v1::ContainerEventResponse> {
        let images = Arc::clone(&self.app.images);
        let events = ReceiverStream::new(self.app.events.subscribe());
        Box::pin(events.map(move |event| Ok(message(event?, &images))))
    }
}

fn message(mut event: Event, images: &Images) -> v1::ContainerEventResponse {
    let kind = match event.change {
        Change::Created => Kind::ContainerCreatedEvent,
        Change::Started => Kind::ContainerStartedEvent,
        Change::Stopped => Kind::ContainerStoppedEvent,
        Change::Deleted => Kind::ContainerDeletedEvent,
    };
    convert::container::newest_first(&mut event.containers);
    let statuses = event.containers.iter().map(|container| {
        let image = images.find(&container.spec.image_digest);
        convert::container::status(container, image.as_ref())
    });
    v1::ContainerEventResponse {
        container_event_type: kind.into(),
        created_at: event.at,
        pod_sandbox_status: event.sandbox.as_deref().map(convert::sandbox::status),
        containers_statuses: statuses.collect(),
        container_id: event.id,
    }
}
