//! Image files in the forms in which web servers and registries send them.
//!
//! Invariant: each file is used, or refused with its reason; a look at it says the same as its pull,
//! or that a pull shows what it is.
//! Failure: the form is named.

use std::io::Write as _;
use std::process::{Command, Stdio};

use flate2::{Compression, GzBuilder};
use http::header;
use serde_json::json;

use super::convert::made;
use super::limits::qcow2;
use super::packed::gzip;
use super::registries::{blob, manifest, registry};
use super::*;

/// Bytes that no compression shortens.
fn noise(length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(7);
    std::iter::repeat_with(|| random.u8(..))
        .take(length)
        .collect()
}

/// A raw disk that a BIOS boots from.
fn bootable() -> Vec<u8> {
    let mut disk = noise(512 << 10);
    disk[0] = 0xeb;
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk
}

fn piped(tool: &str, arguments: &[&str], bytes: &[u8]) -> Vec<u8> {
    let mut command = Command::new(tool);
    command.args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let bytes = bytes.to_vec();
    let writer = std::thread::spawn(move || input.write_all(&bytes));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success(), "{tool}");
    output.stdout
}

/// A gzip file whose header is longer than what is looked at first.
fn long_name(disk: &[u8]) -> Vec<u8> {
    let builder = GzBuilder::new()
        .filename("n".repeat(60_000))
        .comment("c".repeat(10_000))
        .extra([0; 9]);
    let mut encoder = builder.write(Vec::new(), Compression::fast());
    encoder.write_all(disk).unwrap();
    encoder.finish().unwrap()
}

/// A layer with these files.
fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(content.len() as u64);
        builder.append_data(&mut header, path, *content).unwrap();
    }
    builder.into_inner().unwrap()
}

#[tokio::test]
async fn files_of_web_servers_are_used_in_every_form() {
    let t = TestEnvironment::new().await;
    let disk = bootable();
    let skipped = [0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
    let zstd = piped("zstd", &["-c", "-1"], &disk);
    let qcow2 = qcow2(&[]);
    let forms: [(&str, Vec<u8>, &[u8], Format); 7] = [
        ("plain", disk.clone(), &disk, Format::Raw),
        (
            "gzip with a long name",
            long_name(&disk),
            &disk,
            Format::Raw,
        ),
        ("zstd", zstd.clone(), &disk, Format::Raw),
        (
            "zstd behind a frame that is skipped",
            [&skipped, zstd.as_slice()].concat(),
            &disk,
            Format::Raw,
        ),
        (
            "xz whose first chunk ends late",
            piped("xz", &["-c", "-9e"], &disk),
            &disk,
            Format::Raw,
        ),
        ("qcow2", qcow2.clone(), &qcow2, Format::Qcow2),
        (
            "qcow2 in xz",
            piped("xz", &["-c", "-0"], &qcow2),
            &qcow2,
            Format::Qcow2,
        ),
    ];
    for (index, (form, file, content, format)) in forms.into_iter().enumerate() {
        let path = format!("{index}.img");
        t.server.offer(&path, &file, "1");
        let seen = t.images.inspect(&t.server.name(&path)).await;
        let seen = seen.unwrap_or_else(|e| panic!("{form}: {e}"));
        assert_eq!((seen.format, seen.bootable), (Some(format), true), "{form}");
        let image = t.pulled(&path, &file).await;
        assert_eq!(image.digest, digest_of(content), "{form}");
        assert_eq!(image.format, format, "{form}");
    }
}

/// Servers label a file that ends in `.gz` so, or compress what they send although nothing asks for it.
#[tokio::test]
async fn a_file_that_the_server_calls_compressed_is_unpacked() {
    let t = TestEnvironment::new().await;
    let disk = bootable();
    let file = gzip(&bootable());
    t.server.offer("a.img.gz", &file, "1");
    for label in ["gzip", "x-gzip"] {
        let step = Step::With(header::CONTENT_ENCODING, label);
        t.server.script([step.clone(), step]);
        let name = t.server.name("a.img.gz");
        let seen = t.images.inspect(&name).await.unwrap();
        assert_eq!(seen.format, Some(Format::Raw));
        let image = t.images.pull(&name).await.unwrap();
        assert_eq!(image.digest, digest_of(&disk));
        t.images.remove(&name).await.unwrap();
    }
    t.server
        .script([Step::With(header::CONTENT_ENCODING, "br")]);
    let refused = t.images.inspect(&t.server.name("a.img.gz")).await;
    assert!(refused.unwrap_err().to_string().contains("compressed"));
}

#[tokio::test]
async fn layers_of_registries_are_used_in_every_form() {
    const OCI: &str = "application/vnd.oci.image.layer.v1.tar";
    const DOCKER: &str = "application/vnd.docker.image.rootfs.diff.tar";
    let t = registry().await;
    let disk = bootable();
    let layer = archive(&[("disk/a.img", &disk)]);
    let some = noise(2 << 20);
    let much = noise(9 << 20);
    let late = archive(&[("bin/a", &some), ("disk/a.img", &disk)]);
    let very_late = archive(&[("bin/a", &much), ("disk/a.img", &disk)]);
    let zstd = piped("zstd", &["-c", "-1"], &layer);
    let forms: [(&str, String, &[u8], Option<Format>); 7] = [
        ("plain", OCI.to_owned(), &layer, Some(Format::Raw)),
        ("zstd", format!("{OCI}+zstd"), &zstd, Some(Format::Raw)),
        ("of Docker", DOCKER.to_owned(), &layer, Some(Format::Raw)),
        (
            "of Docker, compressed",
            format!("{DOCKER}.gzip"),
            &gzip(&layer),
            Some(Format::Raw),
        ),
        ("squashed", OCI.to_owned(), &late, Some(Format::Raw)),
        (
            "squashed and compressed",
            format!("{OCI}+gzip"),
            &gzip(&late),
            Some(Format::Raw),
        ),
        ("squashed onto much", OCI.to_owned(), &very_late, None),
    ];
    for (index, (form, kind, bytes, format)) in forms.into_iter().enumerate() {
        let repository = format!("r{index}");
        let image = json!({
            "schemaVersion": 2,
            "config": blob(&t.server, &repository, "application/vnd.oci.image.config.v1+json", b"{\"architecture\":\"amd64\",\"os\":\"linux\",\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[]}}"),
            "layers": [blob(&t.server, &repository, &kind, bytes)],
        });
        manifest(&t.server, &repository, "1", &image);
        let name = t.server.name(&format!("{repository}:1"));
        let seen = t.images.inspect(&name).await;
        let seen = seen.unwrap_or_else(|e| panic!("{form}: {e}"));
        assert_eq!((seen.format, seen.bootable), (format, true), "{form}");
        let image = t.images.pull(&name).await;
        let image = image.unwrap_or_else(|e| panic!("{form}: {e}"));
        assert_eq!(image.digest, digest_of(&disk), "{form}");
    }
}

#[tokio::test]
async fn a_container_image_without_a_disk_and_an_encrypted_one_are_refused_in_words() {
    let t = registry().await;
    let layer = archive(&[("bin/a", b"#!"), ("etc/motd", b"hello")]);
    let kind = "application/vnd.oci.image.layer.v1.tar";
    for (kind, words) in [
        (kind.to_owned(), "no file in a directory disk"),
        (format!("{kind}+gzip+encrypted"), "encrypted"),
    ] {
        let image = json!({
            "schemaVersion": 2,
            "config": blob(&t.server, "c", "application/vnd.oci.image.config.v1+json", b"{\"architecture\":\"amd64\",\"os\":\"linux\",\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[]}}"),
            "layers": [blob(&t.server, "c", &kind, &layer)],
        });
        manifest(&t.server, "c", "1", &image);
        let name = t.server.name("c:1");
        let refused = t.images.inspect(&name).await.unwrap_err().to_string();
        assert!(refused.contains(words), "{refused}");
        let refused = t.images.pull(&name).await.unwrap_err().to_string();
        assert!(refused.contains(words), "{refused}");
    }
}

#[tokio::test]
async fn what_a_bios_cannot_boot_is_said() {
    let t = TestEnvironment::new().await;
    let mut efi = vec![0; 128 << 10];
    efi[450] = 0xee;
    efi[510..520].copy_from_slice(b"\x55\xaaEFI PART");
    let mut cd = vec![0; 128 << 10];
    cd[0x8001..0x8006].copy_from_slice(b"CD001");
    let mut partitioned = vec![0; 128 << 10];
    partitioned[450] = 0x83;
    partitioned[510..512].copy_from_slice(&[0x55, 0xaa]);
    let as_qcow2 = made(&partitioned, "qcow2", &[]);
    for (name, file, firmware) in [
        ("efi", &efi, Some(Firmware::Efi)),
        ("partitioned", &partitioned, None),
        ("partitioned.qcow2", &as_qcow2, None),
        ("cd", &cd, None),
        ("efi.gz", &gzip(&efi), Some(Firmware::Efi)),
    ] {
        t.server.offer(name, file, "1");
        let seen = t.images.inspect(&t.server.name(name)).await.unwrap();
        assert_eq!((seen.bootable, seen.firmware), (false, firmware), "{name}");
    }
    t.server.offer("bios", &bootable(), "1");
    let seen = t.images.inspect(&t.server.name("bios")).await.unwrap();
    assert_eq!((seen.bootable, seen.firmware), (true, Some(Firmware::Bios)));
}

#[tokio::test]
async fn the_boot_sector_of_a_qcow2_is_looked_for() {
    let t = TestEnvironment::new().await;
    let mut efi = vec![0; 128 << 10];
    efi[450] = 0xee;
    efi[510..520].copy_from_slice(b"\x55\xaaEFI PART");
    let compressed = made(&efi, "qcow2", &["-c"]);
    let large = ["-o", "cluster_size=2M"];
    let uefi = (false, Some(Firmware::Efi));
    let bios = (true, Some(Firmware::Bios));
    for (form, file, expected) in [
        ("efi", made(&efi, "qcow2", &[]), uefi),
        ("compressed", compressed.clone(), uefi),
        ("packed", gzip(&compressed), uefi),
        ("bios", made(&bootable(), "qcow2", &[]), bios),
        // Its tables are far behind what is read.
        ("large", made(&efi, "qcow2", &large), (true, None)),
    ] {
        t.server.offer(form, &file, "1");
        let seen = t.images.inspect(&t.server.name(form)).await;
        let seen = seen.unwrap_or_else(|e| panic!("{form}: {e}"));
        assert_eq!(seen.format, Some(Format::Qcow2), "{form}");
        assert_eq!((seen.bootable, seen.firmware), expected, "{form}");
    }
    let t = registry().await;
    let layer = archive(&[("disk/a.img", &made(&efi, "qcow2", &[]))]);
    let kind = "application/vnd.oci.image.layer.v1.tar";
    let image = json!({
        "schemaVersion": 2,
        "config": blob(&t.server, "l", "application/vnd.oci.image.config.v1+json", b"{\"architecture\":\"amd64\",\"os\":\"linux\",\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[]}}"),
        "layers": [blob(&t.server, "l", kind, &layer)],
    });
    manifest(&t.server, "l", "1", &image);
    let seen = t.images.inspect(&t.server.name("l:1")).await.unwrap();
    assert_eq!((seen.bootable, seen.firmware), uefi);
}
