//! A request, and what a server answers.
//!
//! Invariant: plain values; what is read of an answer has a bound.
//! Failure: none here.

use std::borrow::Cow;

use bytes::Bytes;
use reqwest::header::{self, HeaderMap};
use rusty_s3::Method;

/// The longest list or message of an error in bytes.
pub(super) const TEXT: usize = 4 << 20;

/// The longest entity tag in bytes.
const ETAG: usize = 256;

/// A request.
#[derive(Debug)]
pub(super) struct Call<'a> {
    /// What is to be done, for people.
    pub(super) step: &'static str,
    pub(super) method: Method,
    /// Of the object; empty: the bucket itself.
    pub(super) key: &'a str,
    pub(super) query: Vec<(&'static str, Cow<'a, str>)>,
    /// The first and the last byte that are requested.
    pub(super) range: Option<(u64, u64)>,
    pub(super) body: Bytes,
    /// The most bytes of the answer that are read.
    pub(super) most: usize,
}

/// What a server answers.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

impl<'a> Call<'a> {
    pub(super) const fn new(step: &'static str, method: Method, key: &'a str) -> Self {
        Self {
            step,
            method,
            key,
            query: Vec::new(),
            range: None,
            body: Bytes::new(),
            most: TEXT,
        }
    }

    pub(super) fn with(mut self, name: &'static str, value: impl Into<Cow<'a, str>>) -> Self {
        self.query.push((name, value.into()));
        self
    }

    pub(super) fn body(self, body: Bytes) -> Self {
        Self { body, ..self }
    }

    /// Whether the answer is XML.
    pub(super) const fn is_document(&self) -> bool {
        self.key.is_empty() || matches!(self.method, Method::Post)
    }

    /// Whether the key is the same in a URL, and in the path of a file.
    pub(super) fn has_plain_key(&self) -> bool {
        let mut segments = self.key.split('/');
        segments.all(|segment| !["", ".", ".."].contains(&segment))
    }
}

impl Answer {
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(super) fn etag(&self) -> Option<&str> {
        let tag = self.headers.get(header::ETAG)?.to_str().ok()?;
        Some(tag).filter(|tag| tag.len() <= ETAG)
    }
}
