//! The fake's images: none is there, each can be pulled.
//!
//! Invariant: a pull that its caller abandons is recorded.
//! Failure: none of its own.

use cri_proto::v1::image_service_server::ImageService;
use cri_proto::v1::{ImageStatusRequest, ImageStatusResponse, PullImageRequest, PullImageResponse};
use tonic::{Request, Response};

use super::{Fake, Reply};

/// Records that a request was abandoned by its caller.
struct Abandoned<'a>(&'a Fake);

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        self.0.record("PullImage abandoned");
    }
}

#[tonic::async_trait]
impl ImageService for Fake {
    async fn image_status(
        &self,
        request: Request<ImageStatusRequest>,
    ) -> Reply<ImageStatusResponse> {
        let kind = if request.get_ref().verbose {
            " verbose"
        } else {
            ""
        };
        self.record(format!("ImageStatus{kind}"));
        let progress = r#"{"receivedBytes": 5, "totalBytes": null}"#;
        let info = [("pull".to_owned(), progress.to_owned())].into();
        Ok(Response::new(ImageStatusResponse { image: None, info }))
    }

    async fn pull_image(&self, _: Request<PullImageRequest>) -> Reply<PullImageResponse> {
        self.enter("PullImage")?;
        if self.scenario.endless_pull {
            let _abandoned = Abandoned(self);
            return std::future::pending().await;
        }
        Ok(Response::new(PullImageResponse {
            image_ref: "sha256:feed".into(),
        }))
    }
}
