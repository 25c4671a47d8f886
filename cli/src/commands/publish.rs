//! `publish`: the disk of a machine, of a snapshot or in a backup, as a container disk in a registry.
//!
//! Invariant: the disk goes from the node to the registry through this program, and nowhere else: no file has it
//! here, and memory has a piece of it at most. The same disk makes the same image: nothing of it depends on time or place. The
//! tag is written when everything that it leads to is in the registry.
//! Failure: the cluster's, the node's and [`RegistryError`], with what the user can do; what the registry has of an image
//! without a tag, it removes by itself.

mod container_disk;
mod credentials;
mod layer_upload;
mod registry;

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr as _;

use anyhow::Context as _;
use clap::Args;
use indicatif::HumanBytes;
use oci_spec::distribution::Reference;

pub(in crate::commands) use self::container_disk::{Layer, LayerSum};
use self::layer_upload::LayerUpload;
use self::registry::{Connection, Registry};
use crate::cluster::ClusterArgs;
use crate::commands::transfer::disk::DiskArgs;
use crate::commands::transfer::fetch::{Fetch, Fetched};
use crate::commands::transfer::progress::Progress;

/// Disk to publish, and the image that it becomes.
#[derive(Debug, Args)]
pub(crate) struct PublishArgs {
    #[command(flatten)]
    disk: DiskArgs,
    /// Name of the image, such as registry.example/team/web:1. Without a registry it is at Docker Hub.
    #[arg(long, value_name = "IMAGE", value_parser = image)]
    to: Reference,
    /// Reach the registry by http, without encryption.
    #[arg(long)]
    insecure: bool,
    /// Directory with config.json, which has the credentials of `docker login` [default: ~/.docker].
    #[arg(long, value_name = "DIRECTORY", env = "DOCKER_CONFIG")]
    docker_config: Option<PathBuf>,
    /// Namespace in which Vmlet is installed.
    #[arg(long, value_name = "NAMESPACE", default_value = "vmlet-system")]
    vmlet_namespace: String,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// A disk that is in the registry.
struct Published {
    layer: Layer,
    fetched: Fetched,
}

/// A disk whose image has its tag.
struct Tagged {
    published: Published,
    /// Of the manifest.
    digest: String,
}

pub(crate) async fn run(args: &PublishArgs) -> anyhow::Result<ExitCode> {
    let tag = args.to.tag().unwrap_or("latest");
    let cluster = args.cluster.connect().await?;
    let disk = args.disk.find(&cluster, &args.vmlet_namespace).await?;
    let credentials = credentials::find(args.docker_config.as_deref(), args.to.registry()).await?;
    let connection = if args.insecure {
        Connection::Http
    } else {
        Connection::Https
    };
    let mut registry = Registry::new(&args.to, connection, credentials)?;
    // A registry that refuses the image does so before the node copies the disk.
    registry.authorize().await?;
    // A node that makes the file may need longer for an answer than the API server.
    let cluster = args.cluster.connect_to_follow().await?;
    let progress = Progress::new("publish");
    let fetch = Fetch {
        cluster: &cluster,
        namespace: &args.vmlet_namespace,
        disk: &disk,
        progress: &progress,
    };
    let tagged = publish(&fetch, &mut registry, tag).await;
    disk.leave(&cluster).await;
    let Tagged { published, digest } = tagged?;
    drop(progress);
    published.fetched.complete().await;
    let bytes = HumanBytes(published.layer.size);
    eprintln!("published {} to {}: {bytes}", args.disk, args.to);
    super::print(&format!("{}@{digest}\n", repository(&args.to)))?;
    Ok(ExitCode::SUCCESS)
}

/// Puts the image of the disk into the registry, its tag last.
async fn publish(fetch: &Fetch<'_>, registry: &mut Registry, tag: &str) -> anyhow::Result<Tagged> {
    let published = match registry.published(tag).await? {
        Some(layer) => fetch
            .same_layer(&layer)
            .await
            .map(|fetched| Published { layer, fetched }),
        None => None,
    };
    let published = match published {
        Some(published) => published,
        None => upload(fetch, registry).await?,
    };
    let image = container_disk::image(&published.layer);
    registry
        .put_blob(&image.config)
        .await
        .context("upload the configuration of the image")?;
    let digest = registry.put_manifest(tag, &image.manifest).await?;
    Ok(Tagged { published, digest })
}

/// Uploads the disk, again from its beginning where the registry has lost it.
async fn upload(fetch: &Fetch<'_>, registry: &mut Registry) -> anyhow::Result<Published> {
    let mut upload = LayerUpload::new(registry);
    loop {
        let fetched = fetch.run(&mut upload).await?;
        fetch.progress.say("the registry checks the disk");
        match upload.finish().await {
            Ok(layer) => return Ok(Published { layer, fetched }),
            Err(error) if error.is_passing() => {
                fetch.progress.say(&format!("{error}: trying again"));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The name of an image, without tag.
fn repository(image: &Reference) -> String {
    format!("{}/{}", image.registry(), image.repository())
}

/// Reads the name of an image.
fn image(text: &str) -> Result<Reference, String> {
    let text = text.strip_prefix("docker://").unwrap_or(text);
    let image = Reference::from_str(text).map_err(|error| error.to_string())?;
    if image.digest().is_some() {
        return Err("it has a digest, which follows from the disk: leave that out".to_owned());
    }
    Ok(image)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_a_registry_a_name_and_a_tag() {
        let named = |text: &str| {
            let image = image(text).unwrap();
            let tag = image.tag().unwrap_or_default().to_owned();
            format!("{} {tag}", repository(&image))
        };
        assert_eq!(
            named("r.example:5000/team/web:1"),
            "r.example:5000/team/web 1"
        );
        assert_eq!(named("docker://r.example/web:1"), "r.example/web 1");
        assert_eq!(named("me/web"), "docker.io/me/web latest");
        for odd in [
            "",
            "R.example/WEB:1",
            "https://r.example/web:1",
            "r.example/web:",
            &format!("r.example/web@sha256:{}", "0a".repeat(32)),
        ] {
            assert!(image(odd).is_err(), "{odd}");
        }
    }
}
