use std::path::Path;

use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use super::ovf::tests::VIRTUALBOX;
use super::*;

/// Beginning of a VMDK file.
const VMDK: &[u8] = b"KDMV and the rest";

fn digits(bytes: &[u8]) -> String {
    let digits = Sha256::digest(bytes);
    digits.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An OVA file with this disk, and a manifest of these contents.
fn ova(dir: &Path, descriptor: &str, disk: &[u8], listed: &[u8]) -> PathBuf {
    let path = dir.join("box.ova");
    let manifest = format!(
        "SHA256(box.ovf)= {}\nSHA256(box-disk001.vmdk)= {}\n",
        digits(descriptor.as_bytes()),
        digits(listed)
    );
    let mut builder = tar::Builder::new(std::fs::File::create(&path).unwrap());
    for (name, content) in [
        ("box.ovf", descriptor.as_bytes()),
        ("box.mf", manifest.as_bytes()),
        ("box-disk001.vmdk", disk),
    ] {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        builder.append_data(&mut header, name, content).unwrap();
    }
    builder.finish().unwrap();
    path
}

fn args(file: PathBuf) -> ImportArgs {
    ImportArgs {
        file,
        name: "web".to_owned(),
        node: Some("n1".to_owned()),
        image: None,
        class: None,
        run_strategy: Run::Halted,
        networks: Vec::new(),
        volumes: Vec::new(),
        keep_mac: false,
        boot_disk: None,
        configuration: None,
        dry_run: false,
        watch: false,
        vmlet_namespace: "vmlet-system".to_owned(),
        cluster: ClusterArgs::default(),
    }
}

/// The report, and the checksum of the disk that would be sent.
fn read(file: PathBuf) -> anyhow::Result<(String, String)> {
    let args = args(file);
    let package = Package::open(&args.file)?;
    let description = Description::parse(&package.descriptor, None)?;
    let mut plan = Plan::new(&description, &args.choice())?;
    about(&package, &mut plan);
    let source = disk(&package, &mut plan)?;
    Ok((plan.report.render(), source.sha256))
}

fn refused(descriptor: &str, disk: &[u8], listed: &[u8]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let error = read(ova(dir.path(), descriptor, disk, listed)).unwrap_err();
    format!("{error:#}")
}

#[test]
fn a_disk_is_taken_out_of_its_archive() {
    let dir = tempfile::tempdir().unwrap();
    let (report, sha256) = read(ova(dir.path(), VIRTUALBOX, VMDK, VMDK)).unwrap();
    assert_eq!(sha256, digits(VMDK));
    assert!(
        report.contains("images.convert must list \"vmdk\""),
        "{report}"
    );
    assert!(!report.contains("manifest"), "{report}");
    // The same side by side, and without a manifest.
    std::fs::write(dir.path().join("b.ovf"), VIRTUALBOX).unwrap();
    std::fs::write(dir.path().join("box-disk001.vmdk"), b"QFI\xfb").unwrap();
    let (report, sha256) = read(dir.path().join("b.ovf")).unwrap();
    assert_eq!(sha256, digits(b"QFI\xfb"));
    assert!(
        report.contains("manifest") && !report.contains("images.convert"),
        "{report}"
    );
}

#[test]
fn a_disk_that_is_not_the_one_of_the_package_is_refused() {
    let words = refused(VIRTUALBOX, VMDK, b"another");
    assert!(words.contains("damaged, or was changed"), "{words}");
    let sized = VIRTUALBOX.replace("ovf:id=\"file1\"", "ovf:id=\"file1\" ovf:size=\"99\"");
    let words = refused(&sized, VMDK, VMDK);
    assert!(
        words.contains("17 bytes, and 99 by its descriptor"),
        "{words}"
    );
    for href in ["../box.ovf", "/etc/passwd", "http://x/box-disk001.vmdk"] {
        let outside = VIRTUALBOX.replace("box-disk001.vmdk", href);
        let words = refused(&outside, VMDK, VMDK);
        assert!(words.contains("no file beside it"), "{words}");
    }
    let missing = VIRTUALBOX.replace("box-disk001.vmdk", "other.vmdk");
    assert!(refused(&missing, VMDK, VMDK).contains("does not have"));
}

#[test]
fn what_no_node_takes_is_not_sent() {
    for disk in [&b"# Disk DescriptorFile\nversion=1"[..], b"conectix"] {
        let words = refused(VIRTUALBOX, disk, disk);
        assert!(words.contains("qemu-img convert -O qcow2"), "{words}");
    }
    let odd = VIRTUALBOX.replace(
        "ovf:id=\"file1\"",
        "ovf:id=\"file1\" ovf:compression=\"lzw\"",
    );
    assert!(refused(&odd, VMDK, VMDK).contains("unpack it first"));
    let packed = odd.replace("lzw", "gzip");
    let dir = tempfile::tempdir().unwrap();
    let gzip = b"\x1f\x8b\x08";
    let (report, _) = read(ova(dir.path(), &packed, gzip, gzip)).unwrap();
    assert!(report.contains("unpacks it"), "{report}");
    // An empty file is a disk without a beginning; the node says what is wrong with it.
    assert!(read(ova(dir.path(), VIRTUALBOX, b"", b"")).is_ok());
}

/// Answers all requests with this status, and returns their first lines.
async fn answering(status: Value) -> (String, tokio::task::JoinHandle<String>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        let mut stream = BufReader::new(listener.accept().await.unwrap().0);
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        let body = status.to_string();
        let head = format!(
            "HTTP/1.1 409 Conflict\r\ncontent-type: application/json\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).await.unwrap();
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
        line
    });
    (server, serving)
}

#[tokio::test]
async fn a_machine_that_exists_is_not_changed_and_nothing_is_sent_for_it() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let exists = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
        "reason": "AlreadyExists", "message": "it exists", "code": 409});
    let (server, serving) = answering(exists).await;
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("config");
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {}}]});
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    let mut args = args(ova(dir.path(), VIRTUALBOX, VMDK, VMDK));
    args.cluster.kubeconfig = Some(kubeconfig);
    let refused = format!("{:#}", run(&args).await.unwrap_err());
    assert!(
        refused.contains("there is a virtual machine web already"),
        "{refused}"
    );
    let line = serving.await.unwrap();
    assert!(
        line.starts_with("POST ") && line.contains("dryRun=All"),
        "{line}"
    );
}
