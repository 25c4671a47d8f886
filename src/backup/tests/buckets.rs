//! Backups in a bucket: what each request that fails, is lost or lies leaves.
//!
//! Invariant: a server in memory stands for the real one, which `stacks::backups_bucket` has.
//! Failure: a test names the objects that are there.

use bytes::Bytes;
use http::Method;

use super::server::{BUCKET, KEY, Server, State, Step};
use super::*;
use crate::files;

const SECRET: &str = "never-to-be-seen";

/// A target, its server, and files that stand for layers.
struct Shop {
    scratch: tempfile::TempDir,
    server: Server,
    target: Target,
}

impl Shop {
    async fn open() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(change: impl FnOnce(&mut BucketSettings)) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let credentials = scratch.path().join("credentials");
        let text = format!("aws_access_key_id={KEY}\naws_secret_access_key={SECRET}\n");
        fs::write(&credentials, text).unwrap();
        let only_owner = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(&credentials, only_owner).unwrap();
        let server = Server::start().await;
        let mut settings = BucketSettings::new(server.endpoint.clone(), BUCKET, credentials);
        settings.prefix = "of/cluster/".to_owned();
        settings.pause = Duration::from_millis(1);
        change(&mut settings);
        let all = BTreeMap::from([("away".to_owned(), Location::Bucket(Box::new(settings)))]);
        let target = Targets::new(all).find("away", uid(VM), NAME).unwrap();
        Self {
            scratch,
            server,
            target,
        }
    }

    fn original(&self, name: &str, bytes: &[u8], format: Format) -> Original {
        let path = self.scratch.path().join(name);
        fs::write(&path, bytes).unwrap();
        Original { path, format }
    }

    async fn write(
        &self,
        number: u8,
        parent: Option<Parent>,
        originals: Vec<Original>,
    ) -> Result<(Manifest, Digest)> {
        self.target.prepare(uid(number)).await?;
        let mut step = |_| {};
        let draft = draft(number, parent);
        let written = self.target.write(draft, originals, &mut step).await?;
        self.target.publish(&written.0).await?;
        Ok(written)
    }

    /// A full backup, whose first file is uploaded in parts, and an increment; the digest of the manifest of that.
    async fn chain(&self) -> Digest {
        let image = self.original("image", &vec![2; 5 * MIB], Format::Raw);
        let (_, sha256) = self
            .write(1, None, vec![self.large(), image])
            .await
            .unwrap();
        let parent = Parent {
            uid: uid(1),
            sha256,
        };
        let upper = self.original("upper", b"changes", Format::Qcow2);
        let written = self.write(2, Some(parent), vec![upper]).await;
        written.unwrap().1
    }

    /// A file that is uploaded in two parts.
    fn large(&self) -> Original {
        let bytes: Vec<u8> = (0..10 * MIB)
            .map(|at| (at / 4093).to_le_bytes()[0])
            .collect();
        self.original("layer", &bytes, Format::Qcow2)
    }

    async fn verify(&self, expected: Option<Digest>) -> Result<u64> {
        let chain = self.target.chain(uid(2), expected).await?;
        chain.verify(&mut |_| {}).await
    }

    fn key(number: u8, name: &str) -> String {
        format!("of/cluster/{}/{}/{name}", uid(VM), uid(number))
    }

    fn marker() -> String {
        format!("of/cluster/{}/machine", uid(VM))
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.server.state());
    }
}

#[tokio::test]
async fn what_was_written_is_read_back() {
    let shop = Shop::open().await;
    let sha256 = shop.chain().await;
    assert!(shop.server.state().uploads.is_empty());
    let chain = shop.target.chain(uid(2), Some(sha256)).await.unwrap();
    chain.check_lengths().await.unwrap();
    let mut seen = 0;
    let read = chain.verify(&mut |bytes| seen += bytes).await.unwrap();
    assert_eq!((read, seen), (chain.bytes(), chain.bytes()));
    let staging = shop.scratch.path().join("staging");
    fs::create_dir(&staging).unwrap();
    let staged = chain.stage(&staging, &mut |_| {}).await.unwrap();
    for (file, original) in staged.iter().zip(["upper", "layer", "image"]) {
        let original = fs::read(shop.scratch.path().join(original)).unwrap();
        assert!(fs::read(&file.path).unwrap() == original, "{file:?}");
    }
}

#[tokio::test]
async fn what_is_not_what_was_written_is_found() {
    let shop = Shop::open().await;
    let sha256 = shop.chain().await;
    let layer = Shop::key(1, "0.qcow2");
    let was = shop.server.state().objects[&layer].clone();
    let mut bytes = was.to_vec();
    bytes[9 * MIB] ^= 1;
    shop.change(|state| drop(state.objects.insert(layer.clone(), bytes.into())));
    let spoiled = shop.verify(Some(sha256)).await.unwrap_err().to_string();
    assert!(
        spoiled.contains("file 0.qcow2") && spoiled.contains("SHA-256"),
        "{spoiled}"
    );
    shop.change(|state| drop(state.objects.insert(layer.clone(), was.slice(1..))));
    let spoiled = shop.verify(Some(sha256)).await.unwrap_err();
    assert!(matches!(spoiled, Error::Spoiled { .. }), "{spoiled}");
    shop.change(|state| drop(state.objects.remove(&layer)));
    let spoiled = shop.verify(Some(sha256)).await.unwrap_err().to_string();
    assert!(spoiled.contains("it is gone"), "{spoiled}");
    shop.change(|state| drop(state.objects.insert(layer, was)));
    let manifest = Shop::key(1, "manifest.json");
    shop.change(|state| {
        let text = [&state.objects[&manifest][..], b" "].concat();
        state.objects.insert(manifest.clone(), text.into());
    });
    let spoiled = shop.verify(Some(sha256)).await.unwrap_err().to_string();
    assert!(spoiled.contains("file manifest.json"), "{spoiled}");
    shop.change(|state| drop(state.objects.insert(manifest, vec![b' '; 2 * MIB].into())));
    let odd = shop.verify(Some(sha256)).await.unwrap_err();
    assert!(odd.to_string().contains("more than"), "{odd}");
}

#[tokio::test]
async fn a_backup_is_removed_after_those_that_are_based_on_it() {
    let shop = Shop::open().await;
    shop.chain().await;
    let remove = async |n| shop.target.remove(uid(n), "ns/vm").await;
    let needed = remove(1).await.unwrap_err();
    assert!(
        matches!(needed, Error::Needed { child, .. } if child == uid(2)),
        "{needed}"
    );
    let other = shop.target.remove(uid(2), "other/vm").await.unwrap_err();
    assert!(matches!(other, Error::OtherNamespace { .. }), "{other}");
    for n in [2, 2, 1, 1] {
        remove(n).await.unwrap();
    }
    assert_eq!(shop.server.keys(), [Shop::marker()]);
    // It is known that there were backups: this one is gone.
    let absent = shop.target.chain(uid(1), None).await.unwrap_err();
    assert!(matches!(absent, Error::Absent { .. }), "{absent}");
    shop.change(|state| state.objects.clear());
    let empty = shop.target.chain(uid(1), None).await.unwrap_err();
    assert!(matches!(empty, Error::Empty { .. }), "{empty}");
}

/// The daemon was killed at each step of a removal.
#[tokio::test]
async fn a_removal_that_was_cut_short_is_done_or_undone_by_the_next() {
    let shop = Shop::open().await;
    shop.chain().await;
    let manifest = Shop::key(1, "manifest.json");
    let hidden = Shop::key(1, "removed.json");
    let hide = |state: &mut State| {
        let text = state.objects[&manifest].clone();
        state.objects.insert(hidden.clone(), text);
    };
    // The manifest is copied, and still there.
    shop.change(hide);
    shop.verify(None).await.unwrap();
    // It is hidden; another node has written one that is based on it.
    shop.change(|state| drop(state.objects.remove(&manifest)));
    shop.target.sweep().await.unwrap();
    shop.verify(None).await.unwrap_err();
    let needed = shop.target.remove(uid(1), "ns/vm").await.unwrap_err();
    assert!(matches!(needed, Error::Needed { .. }), "{needed}");
    shop.verify(None).await.unwrap();
    // A part of it is removed.
    shop.target.remove(uid(2), "ns/vm").await.unwrap();
    shop.change(|state| {
        hide(state);
        state.objects.remove(&manifest);
        state.objects.remove(&Shop::key(1, "0.qcow2"));
    });
    assert_eq!(shop.target.manifest(uid(1)).await.unwrap(), None);
    shop.target.remove(uid(1), "ns/vm").await.unwrap();
    assert_eq!(shop.server.keys(), [Shop::marker()]);
}

#[tokio::test]
async fn what_an_attempt_has_left_is_no_backup_and_is_removed_by_the_next() {
    let shop = Shop::open().await;
    shop.chain().await;
    let complete = shop.server.keys();
    shop.change(|state| {
        state
            .objects
            .insert(Shop::key(3, "0.qcow2"), "a part".into());
        let upload = (Shop::key(3, "1.raw"), BTreeMap::new());
        state.uploads.insert("left".to_owned(), upload);
        let foreign = ("of/other/0.qcow2".to_owned(), BTreeMap::new());
        state.uploads.insert("foreign".to_owned(), foreign);
    });
    assert_eq!(shop.target.manifest(uid(3)).await.unwrap(), None);
    // The removal of another backup leaves what is being written.
    shop.target.remove(uid(4), "ns/vm").await.unwrap();
    assert!(shop.server.state().uploads.contains_key("left"));
    shop.target.prepare(uid(3)).await.unwrap();
    assert_eq!(shop.server.keys(), complete);
    let left: Vec<_> = shop.server.state().uploads.keys().cloned().collect();
    assert_eq!(left, ["foreign"]);
    // A file that cannot be read leaves nothing.
    let absent = Original {
        path: shop.scratch.path().join("absent"),
        format: Format::Qcow2,
    };
    let failed = shop
        .write(3, None, vec![shop.large(), absent])
        .await
        .unwrap_err();
    assert!(
        matches!(failed, Error::Files(files::Error { step: "open", .. })),
        "{failed}"
    );
    assert_eq!(shop.server.keys(), complete);
}

/// Another node hides a backup, or shows it again, between two pages of a list.
#[tokio::test]
async fn what_a_list_does_not_show_as_complete_is_looked_at_again() {
    let shop = Shop::open().await;
    shop.chain().await;
    let complete = shop.server.keys();
    shop.server.rule(Method::GET, "list-type", Step::Blind, 2);
    shop.target.sweep().await.unwrap();
    assert_eq!(shop.server.keys(), complete);
    shop.server.rule(Method::GET, "list-type", Step::Blind, 1);
    shop.target.remove(uid(1), "ns/vm").await.unwrap_err();
    assert_eq!(shop.server.keys(), complete);
}

/// What a server does not show is not taken for absent.
#[tokio::test]
async fn an_answer_that_is_no_whole_list_removes_nothing() {
    for (step, words) in [
        (Step::CutList, "cut its list short"),
        (Step::Page, "something else than a ListBucketResult"),
        (Step::RefuseLate("InternalError"), "200 InternalError"),
    ] {
        let shop = Shop::open().await;
        shop.chain().await;
        let complete = shop.server.keys();
        shop.server.rule(Method::GET, "list-type", step, usize::MAX);
        let sweep = shop.target.sweep().await;
        let remove = shop.target.remove(uid(1), "ns/vm").await;
        for refused in [sweep, remove] {
            let refused = refused.unwrap_err();
            assert!(refused.to_string().contains(words), "{refused}");
            assert!(refused.is_transient());
        }
        assert_eq!(shop.server.keys(), complete);
    }
}

/// Another program may write below the prefix, and remove nothing.
#[tokio::test]
async fn an_object_whose_name_leads_elsewhere_is_left_alone() {
    let shop = Shop::open().await;
    shop.chain().await;
    let victim = format!("of/cluster/{}/{}/manifest.json", uid(7), uid(8));
    let key = |name: &str| format!("of/cluster/{}/{}/{name}", uid(VM), uid(9));
    let odd = [
        key(&format!("../../{}/{}/manifest.json", uid(7), uid(8))),
        key("64.qcow2"),
        key("0.qcow2/x"),
        key("00.qcow2"),
    ];
    shop.change(|state| {
        for key in odd.iter().chain([&victim]) {
            state.objects.insert(key.clone(), Bytes::new());
        }
        let upload = (odd[0].clone(), BTreeMap::new());
        state.uploads.insert("odd".to_owned(), upload);
    });
    let all = shop.server.keys();
    shop.target.sweep().await.unwrap();
    shop.target.remove(uid(9), "ns/vm").await.unwrap();
    assert_eq!(shop.server.keys(), all);
    assert_eq!(shop.server.state().uploads.len(), 1);
}

#[tokio::test]
async fn an_upload_that_is_listed_by_its_whole_name_alone_is_aborted_by_the_next_attempt() {
    let shop = Shop::open().await;
    shop.change(|state| {
        state.lists_by_key = true;
        let upload = (Shop::key(1, "0.qcow2"), BTreeMap::new());
        state.uploads.insert("left".to_owned(), upload);
    });
    shop.write(1, None, vec![shop.large()]).await.unwrap();
    assert!(shop.server.state().uploads.is_empty());
}

#[tokio::test]
async fn a_backup_that_a_late_request_has_changed_is_not_complete() {
    let shop = Shop::open().await;
    shop.server
        .rule(Method::PUT, "manifest.json", Step::Undo, 1);
    let refused = shop.write(1, None, vec![shop.large()]).await.unwrap_err();
    assert!(
        refused.is_transient() && refused.to_string().contains("given up"),
        "{refused}"
    );
    shop.write(1, None, vec![shop.large()]).await.unwrap();
}

#[tokio::test]
async fn a_backup_whose_base_was_removed_meanwhile_is_none() {
    let shop = Shop::open().await;
    let layer = shop.original("layer", b"layer", Format::Qcow2);
    let (_, sha256) = shop.write(1, None, vec![layer.clone()]).await.unwrap();
    let parent = Parent {
        uid: uid(1),
        sha256,
    };
    shop.change(|state| drop(state.objects.remove(&Shop::key(1, "manifest.json"))));
    let refused = shop.write(2, Some(parent), vec![layer]).await.unwrap_err();
    assert!(matches!(refused, Error::ParentRemoved(_)), "{refused}");
    assert_eq!(shop.server.keys(), [Shop::marker()]);
}

#[tokio::test]
async fn a_request_that_fails_for_a_moment_is_sent_again() {
    let shop = Shop::open().await;
    shop.server.rule(
        Method::PUT,
        "partNumber=2",
        Step::Refuse(503, "SlowDown"),
        2,
    );
    shop.server.rule(Method::PUT, "1.raw", Step::Lose, 1);
    shop.server
        .rule(Method::PUT, "manifest.json", Step::Lose, 3);
    // The object is made, and the answer is lost: a second request finds no upload.
    shop.server.rule(Method::POST, "uploadId", Step::Lose, 1);
    shop.chain().await;
    shop.server.rule(
        Method::GET,
        "0.qcow2",
        Step::Refuse(500, "InternalError"),
        3,
    );
    shop.verify(None).await.unwrap();
}

#[tokio::test]
async fn a_request_that_keeps_failing_ends_the_backup_and_leaves_nothing() {
    for (method, part, step, words) in [
        (
            Method::PUT,
            "partNumber=2",
            Step::Refuse(503, "SlowDown"),
            "503 SlowDown: words of the server",
        ),
        (
            Method::POST,
            "uploadId",
            Step::RefuseLate("InternalError"),
            "InternalError",
        ),
        (
            Method::POST,
            "uploadId",
            Step::Refuse(400, "InvalidPart"),
            "400 InvalidPart",
        ),
        (
            Method::PUT,
            "manifest.json",
            Step::Refuse(403, "AccessDenied"),
            "are refused",
        ),
        (
            Method::POST,
            "uploads=",
            Step::Refuse(301, "PermanentRedirect"),
            "the region",
        ),
    ] {
        let shop = Shop::open().await;
        shop.server.rule(method, part, step, usize::MAX);
        let failed = shop.write(1, None, vec![shop.large()]).await.unwrap_err();
        let said = failed.to_string();
        assert!(
            said.contains(words) && failed.is_transient(),
            "{part}: {said}"
        );
        assert_eq!(shop.server.keys(), [Shop::marker()], "{part}");
        assert!(shop.server.state().uploads.is_empty(), "{part}");
    }
}

#[tokio::test]
async fn what_the_operator_has_to_correct_is_named_and_no_secret_is() {
    let absent = Shop::with(|settings| settings.bucket = "absent".to_owned()).await;
    let other = Shop::with(|settings| {
        let text = format!("aws_access_key_id=other\naws_secret_access_key={SECRET}\n");
        fs::write(&settings.credentials, text).unwrap();
    });
    let other = other.await;
    let missing = Shop::with(|settings| settings.credentials = "/absent/credentials".into()).await;
    let untrusted = Shop::with(|settings| settings.ca = Some("/absent/ca".into())).await;
    for (shop, words) in [
        (absent, "bucket absent does not exist"),
        (other, "/credentials are refused"),
        (missing, "credentials file /absent/credentials"),
        (untrusted, "certificate authorities in /absent/ca"),
    ] {
        let refused = shop.target.prepare(uid(1)).await.unwrap_err();
        let said = refused.to_string();
        assert!(said.contains(words) && refused.is_transient(), "{said}");
        assert!(
            !said.contains(SECRET) && !said.contains("Signature"),
            "{said}"
        );
        let shown = format!("{:?}", shop.target);
        assert!(!shown.contains(SECRET), "{shown}");
    }
}

#[tokio::test]
async fn a_server_that_lies_about_lengths_and_lists_is_not_believed() {
    let shop = Shop::open().await;
    let sha256 = shop.chain().await;
    shop.server.rule(Method::GET, "0.qcow2", Step::Cut, 2);
    let short = shop.verify(Some(sha256)).await.unwrap_err();
    assert!(short.to_string().contains("bytes in place of"), "{short}");
    let shop = Shop::open().await;
    shop.server
        .rule(Method::GET, "list-type", Step::Endless, usize::MAX);
    let endless = shop.target.sweep().await.unwrap_err();
    assert!(
        endless.to_string().contains("too many entries"),
        "{endless}"
    );
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_reported_once() {
    let shop = Shop::with(|settings| settings.deadline = Duration::from_millis(300)).await;
    shop.server.rule(Method::GET, "uploads", Step::Hang, 1);
    let hung = shop.target.prepare(uid(1)).await.unwrap_err();
    assert!(
        matches!(hung, Error::Hung(_)) && hung.is_transient(),
        "{hung}"
    );
    shop.target.prepare(uid(1)).await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_gone_is_reported_in_words() {
    let shop = Shop::open().await;
    let Shop { target, server, .. } = shop;
    drop(server);
    let refused = target.prepare(uid(1)).await.unwrap_err();
    assert!(
        matches!(refused, Error::Bucket { .. }) && refused.is_transient(),
        "{refused}"
    );
}
