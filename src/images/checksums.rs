//! A file of checksums that a publisher has beside an image: what it says of the file.
//!
//! ```text
//! HEX  NAME            as sha256sum and sha512sum write it; HEX *NAME is the same
//! SHA256 (NAME) = HEX  as they write it with --tag, and as BSD has it; or SHA512
//! ```
//!
//! Invariant: such a file is short and arrives in time, and is fetched by the rules for images. Lines for other
//! files and of other forms say nothing. What two lines say differently is not decided here.
//! Failure: [`Error::Checksums`] states what the file lacks; else as of a pull.

use std::time::Duration;

use http::{HeaderMap, HeaderValue, StatusCode, header};
use reqwest::Url;
use tokio::time::timeout;

use super::Inner;
use super::checksum::{Checksum, Sha512};
use super::digest::Digest;
use super::download::{Call, Target};
use super::error::{Error, Result};
use super::locator::{Listed, Origin};
use super::reference::Name;
use super::translate::Place;
use super::transport::ServerTls;

/// Longest file of checksums: those of whole distributions have some 100 KiB.
const LONGEST: usize = 1 << 20;
/// Longest time for it, with its repetitions.
const LIMIT: Duration = Duration::from_secs(60);

const NO_LINE: &str = "it has no line with a SHA-256 or SHA-512 for";
const SEVERAL: &str = "it has two lines with different checksums for";

impl Inner {
    /// What the file of checksums has for the file of an image.
    pub(super) async fn listed(
        &self,
        (name, origin): (&Name, &Origin),
        list: Listed,
        tls: Option<&ServerTls>,
    ) -> Result<Checksum> {
        let refuse = |reason: &'static str| Error::InvalidName {
            name: name.repository().to_owned(),
            reason: reason.into(),
        };
        let Origin::Url(url) = origin else {
            return Err(refuse("has a file of checksums, and stands for no URL"));
        };
        let wanted = file_name(url).map_err(refuse)?;
        let Place::File(source) = self.place(&list.name, Origin::Url(list.url), tls).await? else {
            return Err(refuse(
                "has a file of checksums that a translation rule takes to a registry, which has no such files",
            ));
        };
        let location = source.location();
        let target = Target {
            is_disk: false,
            ..Target::for_source(source)
        };
        let body = self.small_file(&target, &location).await?;
        find(&body, wanted.as_bytes()).map_err(|reason| Error::Checksums {
            location,
            reason,
            file: wanted.to_owned(),
        })
    }

    async fn small_file(&self, target: &Target, location: &str) -> Result<Vec<u8>> {
        let mut headers = HeaderMap::new();
        let plain = HeaderValue::from_static("identity");
        headers.insert(header::ACCEPT_ENCODING, plain);
        let call = Call {
            headers,
            form: None,
            limit: LONGEST,
        };
        let reply = timeout(LIMIT, self.downloader.call(target, &call)).await;
        let reply = reply.map_err(|_| Error::Overdue {
            location: location.to_owned(),
            ms: u64::try_from(LIMIT.as_millis()).unwrap_or(u64::MAX),
        })??;
        match reply.status {
            StatusCode::OK => Ok(reply.body),
            status => Err(target.refused(status)),
        }
    }
}

/// The name of the file at a URL, as its publisher calls it.
fn file_name(url: &Url) -> Result<&str, &'static str> {
    let last = url.path().rsplit('/').next().unwrap_or_default();
    match last {
        "" => Err("has a file of checksums, and its URL ends without the name of a file"),
        last if last.contains('%') => Err(
            "has a file of checksums, and its URL ends in a name with escapes (%), which no such file has",
        ),
        last => Ok(last),
    }
}

/// The checksum of the file of that name; SHA-256 where there are both.
fn find(list: &[u8], name: &[u8]) -> Result<Checksum, &'static str> {
    let mut short = None;
    let mut long = None;
    for line in list.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let found = entry(line).filter(|(of, _)| of.strip_prefix(b"./").unwrap_or(of) == name);
        match found.map(|(_, checksum)| checksum) {
            Some(Checksum::Sha256(digest)) => once(&mut short, digest)?,
            Some(Checksum::Sha512(digest)) => once(&mut long, digest)?,
            None => {}
        }
    }
    let short = short.map(Checksum::Sha256);
    short.or(long.map(Checksum::Sha512)).ok_or(NO_LINE)
}

fn once<T: PartialEq + Copy>(known: &mut Option<T>, found: T) -> Result<(), &'static str> {
    let is_other = known.replace(found).is_some_and(|known| known != found);
    if is_other { Err(SEVERAL) } else { Ok(()) }
}

/// The name in a line, and the checksum there.
fn entry(line: &[u8]) -> Option<(&[u8], Checksum)> {
    if let Some(rest) = line.strip_prefix(b"SHA256 (") {
        let (name, digits) = tagged(rest)?;
        return Some((name, sha256(digits)?));
    }
    if let Some(rest) = line.strip_prefix(b"SHA512 (") {
        let (name, digits) = tagged(rest)?;
        return Some((name, sha512(digits)?));
    }
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t');
    let (digits, rest) = line.split_at(line.iter().position(is_space)?);
    let name = rest.trim_ascii_start();
    let name = name.strip_prefix(b"*").unwrap_or(name);
    let checksum = sha256(digits).or_else(|| sha512(digits))?;
    Some((name, checksum))
}

/// `NAME) = HEX`. A name may contain what stands behind it.
fn tagged(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    const BETWEEN: &[u8] = b") = ";
    let at = rest.windows(BETWEEN.len()).rposition(|w| w == BETWEEN)?;
    Some((&rest[..at], &rest[at + BETWEEN.len()..]))
}

fn sha256(digits: &[u8]) -> Option<Checksum> {
    Digest::from_hex(&lower_case(digits)?).ok().map(Into::into)
}

fn sha512(digits: &[u8]) -> Option<Checksum> {
    Sha512::from_hex(&lower_case(digits)?).ok().map(Into::into)
}

fn lower_case(digits: &[u8]) -> Option<String> {
    let is_short = digits.len() <= 128;
    let text = str::from_utf8(digits).ok().filter(|_| is_short)?;
    Some(text.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    const NAME: &str = "disk.img";

    fn a() -> String {
        "0a".repeat(32)
    }

    fn b() -> String {
        "0b".repeat(32)
    }

    fn long() -> String {
        "0c".repeat(64)
    }

    fn found(list: &str) -> Result<String, &'static str> {
        find(list.as_bytes(), NAME.as_bytes()).map(|checksum| checksum.to_string())
    }

    #[rstest]
    #[case::text(format!("{}  {NAME}\n", a()))]
    #[case::binary(format!("{} *{NAME}\n", a()))]
    #[case::without_an_end(format!("{}  {NAME}", a()))]
    #[case::carriage_return(format!("{}  {NAME}\r\n", a()))]
    #[case::tab(format!("{}\t{NAME}\n", a()))]
    #[case::here(format!("{} *./{NAME}\n", a()))]
    #[case::upper_case(format!("{}  {NAME}\n", a().to_uppercase()))]
    #[case::bsd(format!("SHA256 ({NAME}) = {}\n", a()))]
    #[case::signed(format!("-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n# {NAME}: 7 bytes\nSHA256 ({NAME}) = {}\n-----BEGIN PGP SIGNATURE-----\n", a()))]
    #[case::among_others(format!("{}  other.img\n{}  {NAME}\n{}  {NAME}.xz\n{}  x{NAME}\n", b(), a(), b(), b()))]
    #[case::twice_the_same(format!("{}  {NAME}\nSHA256 ({NAME}) = {}\n", a(), a()))]
    #[case::beside_a_longer_one(format!("{}  {NAME}\n{}  {NAME}\n", long(), a()))]
    #[case::beside_a_shorter_one(format!("{}  {NAME}\n{}  {NAME}\n", "0d".repeat(16), a()))]
    #[case::in_another_folder(format!("{}  {NAME}\n{}  old/{NAME}\n", a(), b()))]
    fn the_line_of_the_file_counts(#[case] list: String) {
        assert_eq!(found(&list), Ok(format!("sha256:{}", a())), "{list}");
    }

    #[test]
    fn a_sha512_counts_where_it_is_alone() {
        for list in [
            format!("{}  {NAME}\n", long()),
            format!("SHA512 ({NAME}) = {}\n", long()),
        ] {
            assert_eq!(found(&list), Ok(format!("sha512:{}", long())), "{list}");
        }
    }

    #[rstest]
    #[case::empty(String::new(), NO_LINE)]
    #[case::html(format!("<html><a href=\"{NAME}\">{}</a></html>", a()), NO_LINE)]
    #[case::other_names(format!("{}  Disk.img\n", a()), NO_LINE)]
    #[case::no_name(format!("{}\n{}  \n", a(), a()), NO_LINE)]
    #[case::md5(format!("{}  {NAME}\n", "0d".repeat(16)), NO_LINE)]
    #[case::short(format!("{}  {NAME}\n", &a()[1..]), NO_LINE)]
    #[case::no_digits(format!("{}  {NAME}\n", "zz".repeat(32)), NO_LINE)]
    #[case::tagged_as_another(format!("SHA512 ({NAME}) = {}\n", a()), NO_LINE)]
    #[case::another_algorithm(format!("SHA3-256 ({NAME}) = {}\n", a()), NO_LINE)]
    #[case::without_a_name(format!("SHA256 () = {}\n", a()), NO_LINE)]
    #[case::cut_off(format!("SHA256 ({NAME}"), NO_LINE)]
    #[case::different(format!("{}  {NAME}\n{}  {NAME}\n", a(), b()), SEVERAL)]
    #[case::different_forms(format!("{}  {NAME}\nSHA256 ({NAME}) = {}\n", a(), b()), SEVERAL)]
    #[case::three(format!("{}  {NAME}\n{}  {NAME}\n{}  {NAME}\n", a(), b(), a()), SEVERAL)]
    #[case::different_long_ones(format!("{}  {NAME}\n{}  {NAME}\n", long(), "0d".repeat(64)), SEVERAL)]
    fn what_says_nothing_for_sure_is_refused(#[case] list: String, #[case] expected: &str) {
        assert_eq!(found(&list), Err(expected), "{list}");
    }

    #[test]
    fn other_lines_may_have_any_bytes_and_any_length() {
        let mut list = vec![0xff; 200_000];
        list.extend_from_slice(b"\n\0\n \n  \n*\nSHA256 (\n) = \n");
        list.extend(format!("{}  ", a()).bytes());
        list.extend([0xff, b'\n']);
        list.extend(format!("{}  {}\n", a(), "x".repeat(200_000)).bytes());
        assert_eq!(find(&list, NAME.as_bytes()), Err(NO_LINE));
        list.extend(format!("{}  {NAME}\n", b()).bytes());
        let found = find(&list, NAME.as_bytes()).unwrap();
        assert_eq!(found.to_string(), format!("sha256:{}", b()));
        // A name that contains what stands behind one.
        let odd = b"a) = b";
        let line = format!("SHA256 (a) = b) = {}", a());
        assert!(find(line.as_bytes(), odd).is_ok());
    }

    proptest! {
        #[test]
        fn what_is_found_is_in_the_list_with_the_name(
            before in proptest::collection::vec(any::<u8>(), 0..80),
            line in "(SHA(256|512) [(]a[)] = )?([0-9a-fA-F]{64}|[0-9a-f]{128}|[0-9a-g]{60,66})?[ *\t]{0,3}[a.)/]{0,3}",
            after in proptest::collection::vec(any::<u8>(), 0..80),
        ) {
            let list = [&before[..], line.as_bytes(), &after[..]].concat();
            if let Ok(checksum) = find(&list, b"a") {
                let text = String::from_utf8_lossy(&list).to_lowercase();
                let checksum = checksum.to_string();
                let (_, digits) = checksum.split_once(':').unwrap();
                prop_assert!(text.contains(digits), "{text}");
                prop_assert!(list.contains(&b'a'));
            }
        }
    }

    #[rstest]
    #[case("https://h/a/disk.img?v=1#x", Ok("disk.img"))]
    #[case("https://h/a%20b/disk-1.2_3~4+5.img", Ok("disk-1.2_3~4+5.img"))]
    #[case("https://h/", Err("has a file of checksums, and its URL ends without"))]
    #[case(
        "https://h/a/",
        Err("has a file of checksums, and its URL ends without")
    )]
    #[case(
        "https://h/a%20b.img",
        Err("has a file of checksums, and its URL ends in a name with escapes")
    )]
    fn the_name_is_the_end_of_the_path(#[case] url: &str, #[case] expected: Result<&str, &str>) {
        let url = Url::parse(url).unwrap();
        match (file_name(&url), expected) {
            (Err(reason), Err(words)) => assert!(reason.starts_with(words), "{reason}"),
            (found, expected) => assert_eq!(found, expected),
        }
    }
}
