//! `image list`: the images that machines of a namespace can be made from; `image pull`, `image upload`,
//! `image versions`, `image update`.
//!
//! Invariant: images of the namespace precede those of the cluster, as they win over them.
//! Failure: one of the two kinds that may not be listed is left out with a message; of both it is
//! an error.

mod pull;
mod row;
mod update;
pub(super) mod upload;
mod versions;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use crds::guard::Guarded;
use crds::{ClusterVirtualMachineImage, VirtualMachineImage};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams};

use self::row::{Columns, Row};
use crate::cluster::{Cluster, ClusterArgs, ClusterError, listed};

/// Commands for images.
#[derive(Debug, Subcommand)]
pub(crate) enum ImageArgs {
    /// List images of a namespace and of the cluster.
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Pull an image to nodes before a virtual machine needs it, and show the progress.
    ///
    /// Writes spec.prePull of the image, which also lets nodes that join later pull it. Waits until
    /// all selected nodes have the image; ends with code 1 and the error of a node if nodes fail.
    /// The cluster repeats failed pulls.
    Pull(pull::PullArgs),
    /// Upload a disk of this computer to nodes, and make an image of it.
    ///
    /// Nodes get the file one after the other. An interrupted upload is continued by the same call. The
    /// image is on these nodes only, and machines that use it must run on one of them. Needs the right to run programs in the pods of Vmlet
    /// (pods/exec in its namespace), which administrators of the cluster have.
    Upload(upload::UploadArgs),
    /// List the versions of an image that follows a tag or a file.
    ///
    /// The newest version is the first; new virtual machines use the one with the mark *. Reports on
    /// standard error why that is not the newest.
    Versions(versions::VersionsArgs),
    /// Check the tag or the file of an image at once, or pin a version for new virtual machines.
    ///
    /// Writes spec.update of the image, which must follow one. Returns without waiting for the
    /// nodes: `image versions` shows the result. Virtual machines that exist keep their version.
    Update(update::UpdateArgs),
}

/// Images to list, and the level of detail.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// List the images of all namespaces.
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Show the source of each image.
    #[arg(long)]
    sources: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// The images that could be read; `None`: these may not be listed.
struct Images {
    of_namespace: Option<Vec<Guarded<VirtualMachineImage>>>,
    of_cluster: Option<Vec<Guarded<ClusterVirtualMachineImage>>>,
}

pub(crate) async fn run(args: &ImageArgs) -> anyhow::Result<ExitCode> {
    match args {
        ImageArgs::List(args) => list(args).await,
        ImageArgs::Pull(args) => pull::run(args).await,
        ImageArgs::Upload(args) => Box::pin(upload::run(args)).await,
        ImageArgs::Versions(args) => versions::run(args).await,
        ImageArgs::Update(args) => update::run(args).await,
    }
}

async fn list(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.connect().await?;
    let place = if args.all_namespaces {
        "any namespace".to_owned()
    } else {
        format!("namespace {}", cluster.namespace)
    };
    let images = Images::read(&cluster, args.all_namespaces, &place).await?;
    let rows = images.rows(Timestamp::now());
    if rows.is_empty() {
        eprintln!("{}", images.none(&place));
        return Ok(ExitCode::SUCCESS);
    }
    let columns = Columns {
        namespace: args.all_namespaces,
        source: args.sources,
    };
    super::print(&row::render(&rows, columns))?;
    Ok(ExitCode::SUCCESS)
}

impl Images {
    async fn read(cluster: &Cluster, all: bool, place: &str) -> Result<Self, ClusterError> {
        let of_namespace: Api<Guarded<VirtualMachineImage>> = cluster.api_of(all);
        let of_cluster: Api<Guarded<ClusterVirtualMachineImage>> = Api::all(cluster.client.clone());
        let params = ListParams::default();
        let answers = tokio::join!(
            listed::each(&of_namespace, &params),
            listed::each(&of_cluster, &params)
        );
        match answers {
            (Err(both @ ClusterError::Forbidden(_)), Err(ClusterError::Forbidden(_))) => Err(both),
            (own, shared) => Ok(Self {
                of_namespace: permitted(own, &format!("in {place}"))?,
                of_cluster: permitted(shared, "of the cluster")?,
            }),
        }
    }

    fn rows(&self, now: Timestamp) -> Vec<Row> {
        let own = self.of_namespace.iter().flatten();
        let shared = self.of_cluster.iter().flatten();
        let own = own.map(|image| match &image.0 {
            Ok(image) => Row::of_namespace(image, now),
            Err(unreadable) => Row::unreadable("namespace", unreadable, now),
        });
        let shared = shared.map(|image| match &image.0 {
            Ok(image) => Row::of_cluster(image, now),
            Err(unreadable) => Row::unreadable("cluster", unreadable, now),
        });
        own.chain(shared).collect()
    }

    /// The sentence when there are none.
    fn none(&self, place: &str) -> String {
        match (&self.of_namespace, &self.of_cluster) {
            (_, None) => format!("no images in {place}"),
            (None, _) => "no images of the cluster".to_owned(),
            _ => format!("no images in {place}, nor of the cluster"),
        }
    }
}

/// The images, unless they may not be listed.
fn permitted<K>(
    answer: Result<Vec<K>, ClusterError>,
    which: &str,
) -> Result<Option<Vec<K>>, ClusterError> {
    match answer {
        Ok(images) => Ok(Some(images)),
        Err(ClusterError::Forbidden(message)) => {
            eprintln!("images {which} are left out, they may not be listed: {message}");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kinds_that_were_read_are_reported_as_empty() {
        let none = |own: Option<()>, shared: Option<()>| {
            let images = Images {
                of_namespace: own.map(|()| Vec::new()),
                of_cluster: shared.map(|()| Vec::new()),
            };
            images.none("namespace x")
        };
        assert_eq!(
            none(Some(()), Some(())),
            "no images in namespace x, nor of the cluster"
        );
        assert_eq!(none(Some(()), None), "no images in namespace x");
        assert_eq!(none(None, Some(())), "no images of the cluster");
    }

    #[test]
    fn what_may_not_be_listed_is_left_out_and_other_failures_stay() {
        let read = |error| permitted::<VirtualMachineImage>(Err(error), "of the cluster");
        assert!(matches!(
            read(ClusterError::Forbidden("no".into())),
            Ok(None)
        ));
        let missing = read(ClusterError::NoKinds);
        assert!(matches!(missing, Err(ClusterError::NoKinds)));
    }
}
