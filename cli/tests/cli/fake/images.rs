//! The fake's images: one is listed, none has a status under its name, each can be pulled.
//!
//! Invariant: a pull that its caller abandons is recorded.
//! Failure: none of its own.

use cri_proto::v1::image_service_server::ImageService;
use cri_proto::v1::{
    Image, ImageStatusRequest, ImageStatusResponse, ListImagesRequest, ListImagesResponse,
    PullImageRequest, PullImageResponse,
};
use tonic::{Request, Response};

use super::{Fake, Reply};

/// Records that a request was abandoned by its caller.
struct Abandoned<'a>(&'a Fake);

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        self.0.record("PullImage abandoned");
    }
}

/// The image in the list.
const ID: &str = "sha256:feedfeedfeedfeedfeedfeedfeedfeedfeedfeedfeedfeedfeedfeedfeedfeed";

fn listed() -> Image {
    Image {
        id: ID.to_owned(),
        repo_tags: vec!["vmlet.dev/hello:latest".to_owned()],
        size: 1 << 20,
        ..Image::default()
    }
}

#[tonic::async_trait]
impl ImageService for Fake {
    async fn list_images(&self, _: Request<ListImagesRequest>) -> Reply<ListImagesResponse> {
        self.record("ListImages");
        Ok(Response::new(ListImagesResponse {
            images: vec![listed()],
        }))
    }

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
        let name = request.into_inner().image.unwrap_or_default().image;
        if name == ID {
            let details = r#"{"format": "raw", "virtualSize": 2097152, "users": ["pod a/b"]}"#;
            let info = [("info".to_owned(), details.to_owned())].into();
            let image = Some(listed());
            return Ok(Response::new(ImageStatusResponse { image, info }));
        }
        let progress = r#"{"receivedBytes": 5, "totalBytes": 10}"#;
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
