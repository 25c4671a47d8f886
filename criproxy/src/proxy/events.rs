//! x
use super::{Call, Proxy};
use crate::routes::PRIMARY;
use crate::wire::Body;
use bytes::Bytes;
use http::Response;
impl Proxy {
    pub(super) async fn events(
        self: &std::sync::Arc<Self>,
        call: &Call,
        message: &Bytes,
    ) -> Response<Body> {
        self.forward(PRIMARY, call, Body::message([message.clone()]), None)
            .await
    }
}
