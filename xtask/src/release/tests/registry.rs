//! The image of a release in a registry (Debian's `docker-registry`): what an installation without access to other
//! registries does.
//!
//! Invariant: the registry has a storage and a port of its own, and ends with the test.
//! Failure: curl's message, or the digest that differs.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};

use super::*;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// A registry on the loopback address.
struct Registry {
    process: Child,
    url: String,
}

impl Registry {
    fn start(dir: &Path) -> Self {
        let storage = dir.join("storage");
        let settings = format!(
            "version: 0.1\nlog:\n  level: info\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: \
             127.0.0.1:0\n",
            storage.display()
        );
        let file = dir.join("registry.yml");
        fs::write(&file, settings).unwrap();
        let mut command = run::command("docker-registry");
        command.arg("serve").arg(&file);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let address = lines.find_map(|line| {
            let line = line.unwrap();
            let (_, address) = line.split_once("listening on ")?;
            Some(address.split('"').next().unwrap().to_owned())
        });
        // What it prints later must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            process,
            url: format!("http://{}/v2/vmlet-node", address.unwrap()),
        }
    }

    fn put(&self, file: &Path, to: &str, media_type: &str) {
        let mut curl = run::command("curl");
        curl.args(["--silent", "--show-error", "--fail", "--request", "PUT"]);
        curl.args(["--header", &format!("Content-Type: {media_type}")]);
        let data = format!("@{}", file.display());
        run::output(curl.args(["--data-binary", &data, to])).unwrap();
    }

    fn push_blob(&self, file: &Path, digest: &str) {
        let mut curl = run::command("curl");
        curl.args(["--silent", "--show-error", "--fail", "--request", "POST"]);
        curl.args(["--output", "/dev/null", "--write-out", "%header{location}"]);
        let place = run::output(curl.arg(format!("{}/blobs/uploads/", self.url))).unwrap();
        let place = format!("{place}&digest={digest}");
        self.put(file, &place, "application/octet-stream");
    }

    fn get(&self, path: &str) -> String {
        let mut curl = run::command("curl");
        curl.args(["--silent", "--show-error", "--fail"]);
        curl.args(["--header", &format!("Accept: {MANIFEST}")]);
        run::output(curl.arg(format!("{}/{path}", self.url))).unwrap()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // It may have ended by itself, when the test has failed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_registry_serves_the_image_under_the_digest_that_the_chart_names() {
    let dir = tempfile::tempdir().unwrap();
    let release = dir.path().join("release");
    parts(dir.path(), "hello").write(&release, None).unwrap();
    let listed = document(&release, "images.json");
    let digest = listed["images"][0]["digest"].as_str().unwrap();
    let archive = release.join(listed["images"][0]["file"].as_str().unwrap());
    let layout = dir.path().join("layout");
    fs::create_dir(&layout).unwrap();
    let mut tar = run::command("tar");
    run::output(
        tar.arg("--extract")
            .arg("--file")
            .arg(&archive)
            .arg("--directory")
            .arg(&layout),
    )
    .unwrap();
    let blob = |digest: &str| layout.join("blobs").join(digest.replace(':', "/"));

    let registry = Registry::start(dir.path());
    let pushed = fs::read_to_string(blob(digest)).unwrap();
    let manifest: Value = serde_json::from_str(&pushed).unwrap();
    for part in [&manifest["config"], &manifest["layers"][0]] {
        let digest = part["digest"].as_str().unwrap();
        registry.push_blob(&blob(digest), digest);
    }
    let place = format!("{}/manifests/{}", registry.url, "anything");
    registry.put(&blob(digest), &place, MANIFEST);
    assert_eq!(registry.get(&format!("manifests/{digest}")), pushed);
    let config = manifest["config"]["digest"].as_str().unwrap();
    let served = registry.get(&format!("blobs/{config}"));
    assert_eq!(served, fs::read_to_string(blob(config)).unwrap());
}
