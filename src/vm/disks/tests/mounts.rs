//! What a guest has of mounts, by the vectors of `tests/fixtures/virtlet-mounts.yaml`.
//!
//! Invariant: directories and files are real, laid out as kubelet does; each vector is a pod, and what
//! it does not name as its outcome is not there.
//! Failure: the vector that differs.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use crate::sandbox::SandboxConfig;
use crate::testkit::Node;
use crate::vm::{Container, ContainerConfig, Environment, Mount, Result};

const VECTORS: &str = include_str!("../../../../tests/fixtures/virtlet-mounts.yaml");
/// What each file has.
const CONTENT: &str = "hunter2";
const MODE: u32 = 0o640;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    about: String,
    #[serde(default)]
    copies: bool,
    mounts: Vec<Given>,
    #[serde(default)]
    environment: Vec<(String, String)>,
    #[serde(default)]
    shares: Vec<String>,
    #[serde(default)]
    files: Vec<String>,
    holds: Option<String>,
    #[serde(default)]
    reported: Vec<String>,
    refused: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    host: String,
    is: Kind,
    path: String,
    readonly: bool,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Directory,
    File,
    Object,
}

impl Given {
    /// The mount, with its place on the node.
    fn mount(&self, root: &Path, pod_uid: &str) -> Mount {
        let pod = format!("/var/lib/kubelet/pods/{pod_uid}");
        let host = self.host.replace("POD", &pod);
        let host = root.join(host.trim_start_matches('/'));
        let write = |file: &PathBuf| {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, CONTENT).unwrap();
            fs::set_permissions(file, fs::Permissions::from_mode(MODE)).unwrap();
        };
        match self.is {
            Kind::Directory => fs::create_dir_all(&host).unwrap(),
            Kind::File => write(&host),
            Kind::Object => {
                write(&host.join("..2026/key"));
                symlink("..2026", host.join("..data")).unwrap();
                symlink("..data/key", host.join("key")).unwrap();
            }
        }
        Mount {
            container_path: self.path.clone(),
            host_path: host.into_os_string().into_string().unwrap(),
            readonly: self.readonly,
            ..Mount::default()
        }
    }
}

impl Vector {
    async fn create(&self, node: &Node, pod: SandboxConfig, root: &Path) -> Result<Arc<Container>> {
        let uid = pod.metadata.uid.clone();
        let mounts = self.mounts.iter().map(|given| given.mount(root, &uid));
        let variables = self.environment.iter();
        let variables = variables.map(|(name, value)| (name.clone(), value.clone().into_bytes()));
        let config = ContainerConfig {
            mounts: mounts.collect(),
            environment: Environment(variables.collect()),
            ..node.machine(0)
        };
        let sandbox = node.sandboxes.run(pod).await.unwrap();
        let id = node.containers.create(&sandbox, config).await?;
        Ok(node.row(&id))
    }

    fn check(&self, node: &Node, row: &Container) {
        let about = &self.about;
        let image = fs::read(node.containers.paths().seed(&row.id)).unwrap();
        let image = String::from_utf8_lossy(&image);
        // What the guest's boot runs, among other lines of the image.
        let commands = |word: &str| {
            // Files of the image are filled up with zeros.
            let lines = image.lines().map(|line| line.trim_start_matches('\0'));
            let of = lines.filter_map(|line| line.strip_prefix(word));
            let plain = of.map(|line| line.replace('\'', ""));
            plain.collect::<Vec<_>>()
        };
        let mut shares = commands("share ");
        shares.retain(|command| command.starts_with("vmlet-"));
        assert_eq!(shares, self.shares, "{about}");
        let numbered = commands("put ");
        let files = numbered.iter().filter_map(|command| {
            let (number, file) = command.split_once(' ')?;
            number.parse::<usize>().is_ok().then_some(file)
        });
        assert_eq!(files.collect::<Vec<_>>(), self.files, "{about}");
        if let Some(text) = &self.holds {
            assert!(image.contains(text), "{about}");
        }
        // The node's image is no disk that boots.
        let mut reported = row.spec.unsupported.clone();
        reported.retain(|text| !text.starts_with("the image is a raw disk"));
        assert_eq!(reported.len(), self.reported.len(), "{about}: {reported:?}");
        for (text, words) in reported.iter().zip(&self.reported) {
            assert!(text.contains(words), "{about}: {text}");
        }
    }
}

#[tokio::test]
async fn a_guest_has_of_its_mounts_what_each_vector_says() {
    let vectors: Vec<Vector> = serde_saphyr::from_str(VECTORS).unwrap();
    assert!(vectors.len() >= 18, "{}", vectors.len());
    let node = Node::new().await;
    for (number, vector) in vectors.iter().enumerate() {
        let root = tempfile::tempdir().unwrap();
        let mut pod = node.pod(&format!("pod-{number}"));
        if vector.copies {
            let off = ("vmlet.dev/shares".to_owned(), "off".to_owned());
            pod.annotations.extend([off]);
        }
        let about = &vector.about;
        match (
            vector.create(&node, pod, root.path()).await,
            &vector.refused,
        ) {
            (Ok(row), None) => vector.check(&node, &row),
            (Err(error), Some(words)) => {
                let error = error.to_string();
                assert!(error.contains(words), "{about}: {error}");
            }
            (made, _) => panic!("{about}: {:?}", made.map(|row| row.spec.clone())),
        }
    }
}
