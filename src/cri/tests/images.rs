//! Images as kubelet sees them, of the daemon's own store and disks.
//!
//! Invariant: a web server on loopback has the image; hypervisor and network are away.
//! Failure: the answer that differs.

use cri_proto::v1::image_service_client::ImageServiceClient;
use podspec::VmUid;

use super::methods::alone_in;
use super::*;
use crate::config::{Protocol, RawData};
use crate::disk::DesiredDisk;
use crate::testkit::Node;

type Client = ImageServiceClient<Channel>;

/// Whether the image is pinned, in the list and in its status.
async fn pinned(client: &mut Client, name: &str) -> [bool; 2] {
    let listed = client.list_images(v1::ListImagesRequest::default()).await;
    let listed = listed.unwrap().into_inner().images;
    assert_eq!(listed.len(), 1, "{listed:?}");
    let spec = v1::ImageSpec {
        image: name.to_owned(),
        ..v1::ImageSpec::default()
    };
    let status = client.image_status(v1::ImageStatusRequest {
        image: Some(spec),
        verbose: false,
    });
    let status = status.await.unwrap().into_inner().image;
    [listed[0].pinned, status.expect("the image is here").pinned]
}

/// kubelet's collection of images leaves alone what is pinned.
#[tokio::test]
async fn an_image_is_pinned_as_long_as_a_disk_is_based_on_it() {
    let node = Node::new().await;
    let name = node.image("disk");
    let state = tempfile::tempdir().unwrap();
    let mut config = alone_in(state.path());
    config.images.protocol = Protocol::Http;
    config.images.allowed_addresses = vec!["127.0.0.1".to_owned().try_into().unwrap()];
    config.images.raw_data = RawData::Allow;
    config.images.reserve = "1".parse().unwrap();
    let app = App::start(&config).await.unwrap();
    let simple = FakeRuntime::default();
    let server = Server::serving(simple, image::Images::new(app.clone()), DEADLINE).await;
    let mut client = ImageServiceClient::new(connect(&server.path).await);
    app.images.pull(&name).await.unwrap();
    assert_eq!(pinned(&mut client, &name).await, [false, false]);

    let vm: VmUid = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a".parse().unwrap();
    let desired = DesiredDisk {
        vm,
        name: "default/vm".to_owned(),
        image: name.clone(),
        url: None,
        size: 0,
        linked: true,
    };
    app.disks.make(&desired, |_| {}).await.unwrap();
    assert_eq!(pinned(&mut client, &name).await, [true, true]);
    app.disks.delete(vm).await.unwrap();
    assert_eq!(pinned(&mut client, &name).await, [false, false]);
    drop(client);
    server.stop().await;
}
