//! The image service.
//!
//! Invariant: one short method per RPC: decode, call, encode.
//! Failure: statuses from [`super::status`]; an image that is not here is an empty answer.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use cri_proto::v1;
use cri_proto::v1::image_service_server::ImageService;
use podspec::Annotations;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};
use tracing::Span;

use super::{convert, info, status, streams};
use crate::app::App;
use crate::images::{self, Image, ImageUse, Locator, Reference, Requester, ServerTls};
use crate::sources::Wanted;
use crate::{clock, disk, image_tls};

type Answer<T> = Result<Response<T>, Status>;

/// Answers image requests.
#[derive(Debug)]
pub(super) struct Images {
    app: App,
}

impl Images {
    pub(super) const fn new(app: App) -> Self {
        Self { app }
    }

    /// The pods with a container of the image, or a root disk based on it, and the disks that
    /// need it.
    fn users(&self, image: &Image, used: Option<&ImageUse>) -> Vec<String> {
        let owners = used.map_or(&[][..], |used| &used.owners);
        let digest = image.digest.to_string();
        let containers = self.app.containers.list();
        let of_image = containers.iter().filter(|c| c.spec.image_digest == digest);
        let containing: HashSet<_> = of_image.map(|c| c.sandbox.to_string()).collect();
        let mut pods = self.app.sandboxes.list();
        pods.retain(|pod| {
            let id = pod.id.to_string();
            containing.contains(&id) || owners.contains(&id)
        });
        let mut disks = self.app.disks.all();
        disks.retain(|disk| owners.contains(&disk::owner(disk.vm)));
        let pods = pods.iter().map(|pod| &pod.config.metadata);
        users(
            pods.map(|pod| (pod.namespace.as_str(), pod.name.as_str())),
            disks.iter().map(|disk| disk.name.as_str()),
        )
    }

    /// The certificates for the image's server, if the pod names a Secret with some.
    async fn tls(
        &self,
        namespace: &str,
        pod: &str,
        uid: &str,
        annotations: &BTreeMap<String, String>,
    ) -> Result<Option<ServerTls>, Status> {
        let secret = Annotations::new(annotations).image_tls_secret();
        let secret = secret.map_err(|e| Status::invalid_argument(e.to_string()))?;
        let Some(source) = secret else {
            return Ok(None);
        };
        let wanted = Wanted {
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            pod_uid: uid.to_owned(),
            task: String::new(),
            source,
        };
        let sources = self.app.containers.sources();
        let read = image_tls::read(sources, &self.app.images, wanted).await;
        read.map(Some)
            .map_err(|e| Status::failed_precondition(e.to_string()))
    }

    /// Refuses an image for another container of a pod whose machine runs, such as `kubectl debug`
    /// adds: a pull would only put off that answer.
    fn refuse_second_container(&self, pod_uid: &str, image: &str) -> Result<(), Status> {
        let Some(running) = self.app.containers.machine_of_pod(pod_uid) else {
            return Ok(());
        };
        let own = &running.spec.config.image;
        if is_same(&own.image, image) || is_same(&own.user_specified_image, image) {
            return Ok(());
        }
        Err(Status::failed_precondition(format!(
            "the pod is a virtual machine, container {}, and has no place for another container: for a terminal use \
             kubectl attach or vmletctl console, for a command kubectl exec",
            running.id
        )))
    }
}

/// Whether two texts name one image: kubelet pulls `NAME:latest` for the pod's `NAME`.
fn is_same(one: &str, other: &str) -> bool {
    match (Reference::parse(one), Reference::parse(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => one == other,
    }
}

/// What has an image, in words and sorted: `pod NAMESPACE/NAME`, `disk NAMESPACE/NAME`.
fn users<'a>(
    pods: impl Iterator<Item = (&'a str, &'a str)>,
    disks: impl Iterator<Item = &'a str>,
) -> Vec<String> {
    let pods = pods.map(|(namespace, name)| format!("pod {namespace}/{name}"));
    let users: BTreeSet<_> = pods
        .chain(disks.map(|name| format!("disk {name}")))
        .collect();
    users.into_iter().collect()
}

/// The text that names the image of a request.
fn named(spec: Option<v1::ImageSpec>) -> Result<String, Status> {
    let name = convert::image::spec("image", spec)?.image;
    // As parsed: what a client wrote may hold credentials.
    match Reference::parse(&name) {
        Ok(Reference::Id(id)) => Span::current().record("image", id.to_string()),
        Ok(Reference::Named(name)) => Span::current().record("image", name.to_string()),
        Err(_) => Span::current().record("image", "invalid"),
    };
    Ok(name)
}

#[tonic::async_trait]
impl ImageService for Images {
    async fn list_images(
        &self,
        request: Request<v1::ListImagesRequest>,
    ) -> Answer<v1::ListImagesResponse> {
        let wanted = request.into_inner().filter.and_then(|filter| filter.image);
        let images = match wanted.filter(|spec| !spec.image.is_empty()) {
            Some(spec) => self.app.images.find(&spec.image).into_iter().collect(),
            None => self.app.images.list(),
        };
        let pinned = self.app.images.all_pinned();
        let item = |image: &Image| convert::image::item(image, pinned.contains(&image.digest));
        let images = images.iter().map(item).collect();
        Ok(Response::new(v1::ListImagesResponse { images }))
    }

    async fn image_status(
        &self,
        request: Request<v1::ImageStatusRequest>,
    ) -> Answer<v1::ImageStatusResponse> {
        let request = request.into_inner();
        let name = named(request.image)?;
        let image = if images::is_none(&name) {
            Some(images::none())
        } else {
            self.app.images.find(&name)
        };
        let info = match &image {
            _ if !request.verbose => info::Info::new(),
            Some(image) => {
                let used = self.app.images.use_of(image.digest);
                info::image(image, used.as_ref(), &self.users(image, used.as_ref()))
            }
            None => self
                .app
                .images
                .progress(&name)
                .map(info::pull)
                .unwrap_or_default(),
        };
        Ok(Response::new(v1::ImageStatusResponse {
            image: image.map(|image| {
                let pinned = self.app.images.all_pinned();
                convert::image::item(&image, pinned.contains(&image.digest))
            }),
            info,
        }))
    }

    /// Ends when the client disconnects: the store stops a download whose future is dropped.
    async fn pull_image(
        &self,
        request: Request<v1::PullImageRequest>,
    ) -> Answer<v1::PullImageResponse> {
        let request = request.into_inner();
        let name = named(request.image)?;
        let pod = request.sandbox_config.unwrap_or_default();
        let v1::PodSandboxMetadata {
            name: pod_name,
            uid,
            namespace,
            ..
        } = pod.metadata.unwrap_or_default();
        self.refuse_second_container(&uid, &name)?;
        if images::is_none(&name) {
            let image_ref = images::none().digest.to_string();
            return Ok(Response::new(v1::PullImageResponse { image_ref }));
        }
        let credentials = request.auth.and_then(convert::image::credentials);
        let images = &self.app.images;
        let tls = self
            .tls(&namespace, &pod_name, &uid, &pod.annotations)
            .await?;
        let pull = async {
            let locator = Locator::of_pod(&name, &pod.annotations)?.with_tls(tls.as_ref());
            if credentials.is_some() && !images.is_in_registry(locator).await? {
                tracing::warn!(pod = uid, "image pull secrets ignored");
                self.app.containers.secrets_unused(&uid);
            }
            let requester = Requester::new(namespace, pod_name, uid);
            images
                .pull_for(requester, locator, credentials.as_ref())
                .await
        };
        let image = pull.await.map_err(|e| status::pull(&e))?;
        let image_ref = image.digest.to_string();
        Ok(Response::new(v1::PullImageResponse { image_ref }))
    }

    async fn remove_image(
        &self,
        request: Request<v1::RemoveImageRequest>,
    ) -> Answer<v1::RemoveImageResponse> {
        let name = named(request.into_inner().image)?;
        self.app.images.remove(&name).await?;
        Ok(Response::new(v1::RemoveImageResponse {}))
    }

    async fn image_fs_info(
        &self,
        _: Request<v1::ImageFsInfoRequest>,
    ) -> Answer<v1::ImageFsInfoResponse> {
        let (images, machines) =
            tokio::join!(self.app.images.usage(), self.app.containers.disk_usage(),);
        let answer = convert::image::usage(&images?, machines, clock::now());
        Ok(Response::new(answer))
    }

    async fn stream_images(
        &self,
        request: Request<v1::StreamImagesRequest>,
    ) -> Answer<BoxStream<v1::StreamImagesResponse>> {
        let filter = request.into_inner().filter;
        let list = self.list_images(Request::new(v1::ListImagesRequest { filter }));
        let images = list.await?.into_inner().images;
        let message = |images| v1::StreamImagesResponse { images };
        Ok(Response::new(streams::batches(images, message)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_a_tag_is_that_of_the_newest_image() {
        assert!(is_same("vmlet.dev/hello", "vmlet.dev/hello:latest"));
        assert!(is_same("vmlet.dev/hello:1", "vmlet.dev/hello:1"));
        assert!(!is_same("vmlet.dev/hello:1", "vmlet.dev/hello"));
        assert!(!is_same("", "vmlet.dev/hello"));
        assert!(!is_same("r.example/busybox", "vmlet.dev/hello"));
    }

    #[test]
    fn each_user_of_an_image_is_named_once() {
        let pods = [("b", "web"), ("a", "db"), ("b", "web")];
        let named = users(pods.into_iter(), ["a/db"].into_iter());
        assert_eq!(named, ["disk a/db", "pod a/db", "pod b/web"]);
    }
}
