//! Measures `PullImage` of a container disk from a registry, beside containerd.
//!
//! Invariant: both runtimes take turns and pull the same blob from a registry of this program; the
//! first round is not counted. The image is removed after each pull. containerd unpacks the layer,
//! Vmlet takes the disk out of it.
//! Failure: the pull that failed, or what the registry reported.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use e2e::bench::{Stack, text};
use e2e::samples::Samples;
use e2e::{Cri, eventually};
use serde_json::json;

use crate::files;

/// Where the registry listens, in the network namespace of the stack.
const ADDRESS: &str = "127.0.0.1:5001";
const REPOSITORY: &str = "disks/large";
/// Bytes of the disk.
const SIZE: usize = 512 << 20;
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const ANSWERS: Duration = Duration::from_secs(30);

/// A registry, which ends with this value.
struct Registry {
    process: Child,
    folder: PathBuf,
}

/// `count` pulls of each runtime.
pub(crate) async fn measure(stack: &Stack, cri: &Cri, count: u32) -> Result<Samples> {
    let hosts = stack.path("registry/hosts").join(ADDRESS);
    fs::create_dir_all(&hosts)?;
    let server = format!("server = \"http://{ADDRESS}\"\n");
    fs::write(hosts.join("hosts.toml"), server)?;
    let registry = Registry::start(stack).await?;
    registry.push()?;
    let containerd = stack.path("run/containerd.sock");
    let containerd = Cri::connect(&containerd).await.context("containerd")?;
    let image = format!("{ADDRESS}/{REPOSITORY}:1");
    let mut samples = Samples::default();
    for number in 0..=count {
        let mut both = [
            ("registry_vmlet", cri),
            ("registry_containerd", &containerd),
        ];
        if number.is_multiple_of(2) {
            both.reverse();
        }
        for (name, cri) in both {
            let begun = Instant::now();
            cri.pull(&image).await.context(name)?;
            let took = begun.elapsed();
            cri.remove_image(&image).await.context(name)?;
            if number > 0 {
                samples.time(name, took);
            }
        }
    }
    Ok(samples)
}

impl Registry {
    async fn start(stack: &Stack) -> Result<Self> {
        let folder = stack.path("large");
        fs::create_dir(&folder)?;
        let configuration = folder.join("configuration.yml");
        let text = format!(
            "version: 0.1\nlog:\n  level: warn\nstorage:\n  filesystem:\n    rootdirectory: {}\n\
             http:\n  addr: {ADDRESS}\n",
            folder.join("storage").display()
        );
        fs::write(&configuration, text)?;
        let log = fs::File::create(folder.join("log"))?;
        let mut process = Command::new("docker-registry");
        process
            .arg("serve")
            .arg(&configuration)
            .stdin(Stdio::null());
        let process = process.stdout(log.try_clone()?).stderr(log).spawn();
        let process = process.context("run docker-registry")?;
        let registry = Self { process, folder };
        eventually(ANSWERS, "the registry answers", || async {
            files::run(curl().arg(format!("http://{ADDRESS}/v2/"))).map(drop)
        })
        .await?;
        Ok(registry)
    }

    /// Uploads a container disk.
    fn push(&self) -> Result<()> {
        let disk = self.folder.join("disk");
        let layer = self.folder.join("layer.tar");
        fs::create_dir(&disk)?;
        files::write(&disk.join("disk.img"), SIZE)?;
        let mut tar = Command::new("tar");
        tar.args(["--create", "--file", text(&layer)?, "--directory"]);
        files::run(tar.args([text(&self.folder)?, "disk"]))?;
        fs::remove_dir_all(&disk)?;
        let digest = digest(&layer)?;
        let config = json!({
            "architecture": "amd64",
            "os": "linux",
            "config": {},
            "rootfs": { "type": "layers", "diff_ids": [digest] },
        });
        let config = self.write("config.json", &config)?;
        let descriptor = |kind: &str, blob: &Path| -> Result<_> {
            let size = fs::metadata(blob)?.len();
            Ok(json!({ "mediaType": kind, "digest": self::digest(blob)?, "size": size }))
        };
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor(CONFIG, &config)?,
            "layers": [descriptor(LAYER, &layer)?],
        });
        upload(&config)?;
        upload(&layer)?;
        fs::remove_file(&layer)?;
        let manifest = self.write("manifest.json", &manifest)?;
        let url = format!("http://{ADDRESS}/v2/{REPOSITORY}/manifests/1");
        put(&manifest, MANIFEST, &url)
    }

    fn write(&self, name: &str, document: &serde_json::Value) -> Result<PathBuf> {
        let path = self.folder.join(name);
        fs::write(&path, document.to_string())?;
        Ok(path)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn curl() -> Command {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--fail"]);
    curl
}

/// Uploads a blob.
fn upload(blob: &Path) -> Result<()> {
    let begin = format!("http://{ADDRESS}/v2/{REPOSITORY}/blobs/uploads/");
    let mut request = curl();
    request.args(["--request", "POST", "--output", "/dev/null"]);
    let place = files::run(request.args(["--write-out", "%header{location}", &begin]))?;
    let url = format!("{place}&digest={}", digest(blob)?);
    put(blob, "application/octet-stream", &url)
}

fn put(file: &Path, kind: &str, url: &str) -> Result<()> {
    let mut request = curl();
    request.args(["--header", &format!("Content-Type: {kind}")]);
    files::run(request.args(["--upload-file", text(file)?, url])).map(drop)
}

fn digest(file: &Path) -> Result<String> {
    let printed = files::run(Command::new("sha256sum").arg(file))?;
    let digest = printed.split(' ').next().context("no digest")?;
    Ok(format!("sha256:{digest}"))
}
