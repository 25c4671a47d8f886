//! The image service of the runtime in memory.
//!
//! Invariant: images are what the test has put there.
//! Failure: as [`crate::fake::Mood`] specifies.

use cri_proto::v1;
use cri_proto::v1::image_service_server::ImageService;
use tonic::{Request, Response};

use super::Answer;
use crate::fake::Inner;

#[tonic::async_trait]
impl ImageService for Inner {
    async fn list_images(
        &self,
        _: Request<v1::ListImagesRequest>,
    ) -> Answer<v1::ListImagesResponse> {
        self.enter("ListImages").await?;
        let images = self
            .state
            .lock()
            .unwrap()
            .images
            .values()
            .cloned()
            .collect();
        Ok(Response::new(v1::ListImagesResponse { images }))
    }

    async fn image_status(
        &self,
        request: Request<v1::ImageStatusRequest>,
    ) -> Answer<v1::ImageStatusResponse> {
        self.enter("ImageStatus").await?;
        let name = request.into_inner().image.unwrap_or_default().image;
        let state = self.state.lock().unwrap();
        let mut images = state.images.values();
        let image = images.find(|i| i.id == name || i.repo_tags.contains(&name));
        Ok(Response::new(v1::ImageStatusResponse {
            image: image.cloned(),
            ..Default::default()
        }))
    }

    async fn pull_image(
        &self,
        request: Request<v1::PullImageRequest>,
    ) -> Answer<v1::PullImageResponse> {
        self.enter("PullImage").await?;
        let name = request.into_inner().image.unwrap_or_default().image;
        let image_ref = format!("sha256:{}{:x}", "0".repeat(60), name.len());
        Ok(Response::new(v1::PullImageResponse { image_ref }))
    }

    async fn remove_image(
        &self,
        request: Request<v1::RemoveImageRequest>,
    ) -> Answer<v1::RemoveImageResponse> {
        self.enter("RemoveImage").await?;
        let name = request.into_inner().image.unwrap_or_default().image;
        self.state.lock().unwrap().images.remove(&name);
        Ok(Response::new(Default::default()))
    }

    async fn image_fs_info(
        &self,
        _: Request<v1::ImageFsInfoRequest>,
    ) -> Answer<v1::ImageFsInfoResponse> {
        self.enter("ImageFsInfo").await?;
        let usage = v1::FilesystemUsage {
            fs_id: Some(v1::FilesystemIdentifier {
                mountpoint: format!("/{}", self.name),
            }),
            ..Default::default()
        };
        Ok(Response::new(v1::ImageFsInfoResponse {
            image_filesystems: vec![usage.clone()],
            container_filesystems: vec![usage],
        }))
    }
}
