//! What a server's file is, without having all of it.
//!
//! Invariant: no look leaves a file or a name in the store.
//! Failure: as of a pull.

use http::header;

use super::limits::qcow2;
use super::*;

impl TestEnvironment {
    /// What the only file is.
    async fn inspected(&self, bytes: &[u8]) -> Result<Inspected> {
        self.server.offer("a", bytes, "1");
        let found = self.images.inspect(&self.server.name("a")).await;
        assert!(self.partials().is_empty() && self.data().is_empty());
        assert!(self.images.list().is_empty());
        found
    }
}

fn raw(bytes: u64, bootable: bool) -> Inspected {
    Inspected {
        format: Some(Format::Raw),
        virtual_bytes: bytes,
        file_bytes: bytes,
        bootable,
        firmware: bootable.then_some(Firmware::Bios),
        digest: None,
    }
}

#[tokio::test]
async fn a_qcow2_is_known_by_its_first_bytes() {
    let env = TestEnvironment::new().await;
    let bytes = qcow2(&[]);
    let expected = Inspected {
        format: Some(Format::Qcow2),
        virtual_bytes: 3 << 30,
        file_bytes: bytes.len() as u64,
        bootable: true,
        firmware: None,
        digest: None,
    };
    assert_eq!(env.inspected(&bytes).await.unwrap(), expected);
    let seen = env.server.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].header(header::RANGE), Some("bytes=0-65535"));
    // Its tables are behind that: they may lead to a boot sector.
    assert_eq!(seen[1].header(header::RANGE), Some("bytes=0-1048575"));
    assert_eq!(seen[0].header(header::ACCEPT_ENCODING), Some("identity"));
}

#[tokio::test]
async fn a_raw_disk_boots_if_it_has_a_boot_signature() {
    let env = TestEnvironment::new().await;
    let mut bytes = disk(400, 1);
    assert_eq!(env.inspected(&bytes).await.unwrap(), raw(204_800, false));
    bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
    assert_eq!(env.inspected(&bytes).await.unwrap(), raw(204_800, true));
    let small = disk(1, 1);
    assert_eq!(env.inspected(&small).await.unwrap(), raw(512, false));
}

#[tokio::test]
async fn of_a_server_without_ranges_no_more_than_the_head_is_awaited() {
    let env = TestEnvironment::new().await;
    // The rest never comes.
    env.server.script([Step::HoldAfter(65_536)]);
    let found = env.inspected(&disk(400, 1)).await.unwrap();
    assert_eq!(found, raw(204_800, false));
}

#[tokio::test]
async fn without_a_length_only_a_short_file_has_a_size() {
    let env = TestEnvironment::new().await;
    env.server.script([1, 2, 3].map(|_| Step::Unsized));
    let long = env.inspected(&disk(400, 1)).await.unwrap();
    assert_eq!(long, raw(0, false));
    let short = env.inspected(&disk(4, 1)).await.unwrap();
    assert_eq!(short, raw(2048, false));
    let found = env.inspected(&qcow2(&[])).await.unwrap();
    assert_eq!((found.virtual_bytes, found.file_bytes), (3 << 30, 0));
    let span = Step::With(header::CONTENT_RANGE, "bytes 0-65535/*");
    env.server.script([span]);
    let ranged = env.inspected(&disk(400, 1)).await.unwrap();
    assert_eq!(ranged, raw(0, false));
}

#[tokio::test]
async fn what_is_no_disk_is_refused() {
    let env = TestEnvironment::new().await;
    let hostile = qcow2(&["-b", "/etc/passwd", "-F", "raw"]);
    let cases: [(&[u8], _); 4] = [
        (b"<!DocType html>", FormatError::WebPage),
        (b"", FormatError::Empty),
        (&[0; 513], FormatError::Sectors(513)),
        (&hostile, FormatError::Qcow2(Qcow2Error::BackingFile)),
    ];
    for (bytes, expected) in cases {
        let error = env.inspected(bytes).await.unwrap_err();
        assert!(!error.is_passing(), "{error}");
        let Error::Format { reason, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(reason, expected);
    }
}

#[tokio::test]
async fn a_missing_or_too_large_file_is_an_error_that_names_it() {
    let env = TestEnvironment::with(|s| {
        s.max_download_bytes = 100_000;
        s.max_virtual_bytes = 1 << 20;
    })
    .await;
    let name = env.server.name("none");
    let error = env.images.inspect(&name).await.unwrap_err();
    let words = format!("not found: {name} answered 404 Not Found");
    assert_eq!(error.to_string(), words);
    assert_eq!(env.server.seen().len(), 1);
    let error = env.inspected(&disk(400, 1)).await.unwrap_err();
    let is_limit = matches!(error, Error::TooLarge { limit: 100_000, .. });
    assert!(is_limit, "{error}");
    // A file that would be small enough has a large disk in it.
    let head = &qcow2(&[])[..65_536];
    env.server.script([Step::Unsized]);
    let error = env.inspected(&[head, &[0]].concat()).await.unwrap_err();
    assert!(error.to_string().starts_with("unusable image"), "{error}");
}

#[tokio::test]
async fn troubles_that_pass_are_waited_out() {
    let env = TestEnvironment::new().await;
    env.server
        .script([Step::Status(503), Step::CutAfter(1_000)]);
    let found = env.inspected(&disk(400, 1)).await.unwrap();
    assert_eq!(found, raw(204_800, false));
    assert_eq!(env.server.seen().len(), 3);
    env.server.script([1, 2, 3, 4].map(|_| Step::Status(500)));
    let error = env.inspected(&disk(400, 1)).await.unwrap_err();
    assert!(error.is_passing(), "{error}");
    assert_eq!(env.server.seen().len(), 3 + 4);
}

#[tokio::test]
async fn another_part_of_the_file_or_a_compressed_one_is_refused() {
    let env = TestEnvironment::new().await;
    env.server.script([
        Step::With(header::CONTENT_RANGE, "bytes 1-65536/204800"),
        Step::With(header::CONTENT_ENCODING, "gzip"),
    ]);
    for _ in 0..2 {
        let error = env.inspected(&disk(400, 1)).await.unwrap_err();
        assert!(matches!(error, Error::Reply { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_digest_in_the_name_is_not_checked_and_an_id_is_no_name() {
    let env = TestEnvironment::new().await;
    env.server.offer("a", &disk(4, 1), "1");
    let other = digest_of(b"other");
    let name = format!("{}@{other}", env.server.name("a"));
    let found = env.images.inspect(&name).await.unwrap();
    assert_eq!(found, raw(2048, false));
    let error = env.images.inspect(&other.to_string()).await.unwrap_err();
    assert!(error.to_string().contains("is an id"), "{error}");
}
