//! What servers answer, in XML.
//!
//! Invariant: what was read is bounded, as its text was, and has the element that the answer is to have: a page of a proxy is
//! no empty list. Elements that are not needed are ignored.
//! Failure: a sentence; a message of an error that cannot be read is none.

use std::fmt::{self, Display};

use quick_xml::Reader;
use quick_xml::de::from_str;
use quick_xml::escape::escape;
use quick_xml::events::Event;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// The longest part of a server's message that is shown, in characters.
const SHOWN: usize = 200;

/// A page of a list of objects.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Objects {
    pub(super) is_truncated: bool,
    pub(super) next_continuation_token: Option<String>,
    pub(super) contents: Vec<Content>,
}

/// An object in a list.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::backup) struct Content {
    pub(in crate::backup) key: String,
    pub(in crate::backup) size: u64,
}

/// A page of a list of uploads.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Uploads {
    pub(super) is_truncated: bool,
    pub(super) next_key_marker: Option<String>,
    pub(super) next_upload_id_marker: Option<String>,
    pub(super) upload: Vec<Upload>,
}

/// An upload that was begun.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Upload {
    pub(super) key: String,
    pub(super) upload_id: String,
}

/// An upload that was just begun.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Begun {
    upload_id: String,
}

/// Why a server refuses.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Refusal {
    code: String,
    message: String,
}

impl Objects {
    pub(super) fn read(text: &str) -> Result<Self, String> {
        read(text, "ListBucketResult")
    }
}

impl Uploads {
    pub(super) fn read(text: &str) -> Result<Self, String> {
        read(text, "ListMultipartUploadsResult")
    }
}

/// Reads an answer that has an element of this name.
fn read<T: DeserializeOwned>(text: &str, name: &str) -> Result<T, String> {
    if !has_root(text, name) {
        return Err(format!(
            "the server answered with something else than a {name}"
        ));
    }
    from_str(text).map_err(unreadable)
}

/// Whether all else is in an element of this name.
fn has_root(text: &str, name: &str) -> bool {
    let mut reader = Reader::from_str(text);
    loop {
        match reader.read_event() {
            Ok(Event::Start(element) | Event::Empty(element)) => {
                return element.local_name().as_ref() == name;
            }
            Ok(Event::Eof) | Err(_) => return false,
            Ok(_) => {}
        }
    }
}

/// The ID of an upload that was begun.
pub(super) fn upload_id(text: &str) -> Result<String, String> {
    let begun: Begun = read(text, "InitiateMultipartUploadResult")?;
    Ok(begun.upload_id)
}

impl Refusal {
    pub(super) fn read(body: &[u8]) -> Self {
        from_str(&String::from_utf8_lossy(body)).unwrap_or_default()
    }

    pub(super) fn code(&self) -> &str {
        &self.code
    }

    /// Whether an answer with the status of a success is a refusal.
    pub(super) fn within(body: &[u8]) -> bool {
        has_root(&String::from_utf8_lossy(body), "Error")
    }

    pub(super) fn message(&self) -> &str {
        &self.message
    }
}

impl Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = match (self.code.as_str(), self.message.as_str()) {
            ("", _) => "without a reason".to_owned(),
            (code, "") => code.to_owned(),
            (code, message) => format!("{code}: {message}"),
        };
        let plain = whole.chars().map(|c| if c.is_control() { ' ' } else { c });
        f.write_str(&plain.take(SHOWN).collect::<String>())
    }
}

/// The request that makes an object of the parts with these entity tags.
pub(super) fn completion(etags: &[String]) -> String {
    let mut text = "<CompleteMultipartUpload>".to_owned();
    for (number, etag) in (1..).zip(etags) {
        let etag = escape(etag.as_str());
        text += &format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>");
    }
    text + "</CompleteMultipartUpload>"
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn unreadable(error: quick_xml::DeError) -> String {
    format!("its answer cannot be read: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_whatever_else_they_have() {
        let text = r#"<?xml version="1.0" encoding="UTF-8"?>
            <ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name>
            <IsTruncated>true</IsTruncated><NextContinuationToken>t&amp;1</NextContinuationToken>
            <Contents><Key>a/1</Key><Size>7</Size><ETag>"x"</ETag><Owner><ID>o</ID></Owner></Contents>
            <Contents><Key>a/2</Key><Size>8</Size></Contents></ListBucketResult>"#;
        let read = Objects::read(text).unwrap();
        let found: Vec<_> = read
            .contents
            .iter()
            .map(|one| (&*one.key, one.size))
            .collect();
        assert_eq!(found, [("a/1", 7), ("a/2", 8)]);
        assert_eq!(read.next_continuation_token.as_deref(), Some("t&1"));
        assert!(read.is_truncated);
        let empty = Objects::read("<ListBucketResult/>").unwrap();
        assert!(empty.contents.is_empty() && !empty.is_truncated);
        let text = "<ListMultipartUploadsResult><Upload><Key>k</Key><UploadId>u</UploadId>\
                    <Initiated>2026</Initiated></Upload></ListMultipartUploadsResult>";
        let read = Uploads::read(text).unwrap();
        assert_eq!(
            (&*read.upload[0].key, &*read.upload[0].upload_id),
            ("k", "u")
        );
        for odd in [
            "",
            "<",
            "<html><body/></html",
            "<ListBucketResult><Contents/>",
            "<html><body/></html>",
            "<Error><Code>InternalError</Code></Error>",
            "<ListMultipartUploadsResult/>",
        ] {
            assert!(Objects::read(odd).is_err(), "{odd}");
            assert!(upload_id(odd).is_err(), "{odd}");
        }
        assert!(Uploads::read("<html><body/></html>").is_err());
    }

    #[test]
    fn what_a_server_says_is_bounded_and_plain() {
        let long = format!(
            "<Error><Code>Odd</Code><Message>a\u{1b}[1m{}</Message></Error>",
            "x".repeat(999)
        );
        let said = Refusal::read(long.as_bytes()).to_string();
        assert!(
            said.starts_with("Odd: a [1mx") && said.chars().count() == SHOWN,
            "{said}"
        );
        assert_eq!(Refusal::read(b"\xff<").to_string(), "without a reason");
        assert!(!Refusal::within(b"<CompleteMultipartUploadResult/>"));
        assert!(Refusal::within(
            b"<?xml version='1.0'?><Error><Code>InternalError</Code></Error>"
        ));
    }

    #[test]
    fn parts_are_named_in_their_order() {
        let text = completion(&["\"a\"".to_owned(), "b<".to_owned()]);
        let second = "<Part><PartNumber>2</PartNumber><ETag>b&lt;</ETag></Part>";
        assert!(
            text.contains(second) && text.contains("<ETag>&quot;a&quot;</ETag>"),
            "{text}"
        );
    }
}
