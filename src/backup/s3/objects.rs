//! Whole objects: lists of them, and those that fit into memory.
//!
//! Invariant: a list is bounded, also where a server says that it goes on and on.
//! Failure: [`Error`](super::Error).

use bytes::Bytes;
use rusty_s3::Method;

use super::answers::{Content, Objects, Uploads};
use super::{Call, Client, Result};

/// The most entries of a list.
const MOST: usize = 20_000;

/// The longest key in bytes, as the protocol says.
const KEY: usize = 1024;

/// The longest name of the place that a list goes on at.
const TOKEN: usize = 4096;

/// The most pages of a list.
const PAGES: usize = 1000;

impl Client {
    /// Stores an object.
    pub(in crate::backup) async fn put(&self, key: &str, body: Bytes) -> Result<()> {
        let call = Call::new("write", Method::Put, key).body(body);
        let answered = self.call(&call).await?;
        answered.map(drop).ok_or_else(|| self.odd(&call))
    }

    /// The first bytes of an object; none: there is no such.
    pub(in crate::backup) async fn get(&self, key: &str, most: usize) -> Result<Option<Vec<u8>>> {
        let mut call = Call::new("read", Method::Get, key);
        call.most = most;
        let answered = self.call(&call).await?;
        Ok(answered.map(|answer| answer.body))
    }

    /// These bytes of an object; none: there is no such.
    pub(in crate::backup) async fn get_range(
        &self,
        key: &str,
        at: u64,
        length: usize,
    ) -> Result<Option<Vec<u8>>> {
        let mut call = Call::new("read", Method::Get, key);
        call.range = Some((at, at + length as u64 - 1));
        call.most = length + 1;
        let Some(answer) = self.call(&call).await? else {
            return Ok(None);
        };
        if answer.body.len() != length {
            let has = answer.body.len();
            let reason = format!("the server answered with {has} bytes in place of {length}");
            return Err(self.failed(&call, reason));
        }
        Ok(Some(answer.body))
    }

    /// Removes an object; success when there is none.
    pub(in crate::backup) async fn delete(&self, key: &str) -> Result<()> {
        let call = Call::new("remove", Method::Delete, key);
        self.call(&call).await.map(drop)
    }

    /// The length of an object; none: there is no such.
    pub(in crate::backup) async fn length(&self, key: &str) -> Result<Option<u64>> {
        // It is the first one of those with this prefix. An answer to HEAD does not say what is absent.
        let page = self.page(key, None, Some(1)).await?;
        let found = page.contents.iter().find(|one| one.key == key);
        Ok(found.map(|one| one.size))
    }

    /// Whether there is any object with this prefix.
    pub(in crate::backup) async fn has_any(&self, prefix: &str) -> Result<bool> {
        let page = self.page(prefix, None, Some(1)).await?;
        Ok(!page.contents.is_empty())
    }

    /// All objects with this prefix.
    pub(in crate::backup) async fn list(&self, prefix: &str) -> Result<Vec<Content>> {
        let mut all = Vec::new();
        let mut token: Option<String> = None;
        for _ in 0..PAGES {
            let page = self.page(prefix, token.clone(), None).await?;
            let found = page.contents.into_iter();
            all.extend(found.filter(|one| one.key.starts_with(prefix) && one.key.len() <= KEY));
            if all.len() > MOST {
                break;
            }
            if !page.is_truncated {
                return Ok(all);
            }
            let next = page.next_continuation_token;
            if next.as_ref().is_none_or(|next| is_no_place(next)) || next == token {
                return Err(self.cut_short(prefix));
            }
            token = next;
        }
        Err(self.endless(prefix))
    }

    /// Aborts the uploads of objects with this prefix whose keys are ours.
    pub(in crate::backup) async fn abort_all(
        &self,
        prefix: &str,
        is_ours: impl Fn(&str) -> bool + Send + Sync,
    ) -> Result<()> {
        let mut markers: Option<(String, String)> = None;
        for _ in 0..PAGES {
            let mut call = Call::new("list uploads in", Method::Get, "");
            call = call.with("uploads", "1").with("prefix", prefix);
            if let Some((key, id)) = &markers {
                call = call.with("key-marker", key.clone());
                call = call.with("upload-id-marker", id.clone());
            }
            let answered = self.call(&call).await?;
            let answered = answered.ok_or_else(|| self.odd(&call))?;
            let page = Uploads::read(&answered.text());
            let page: Uploads = page.map_err(|reason| self.failed(&call, reason))?;
            let ours = page.upload.iter();
            let ours = ours.filter(|one| one.key.starts_with(prefix) && is_ours(&one.key));
            for upload in ours {
                self.abort(&upload.key, &upload.upload_id).await?;
            }
            if !page.is_truncated {
                return Ok(());
            }
            let next = page.next_key_marker.zip(page.next_upload_id_marker);
            if next.as_ref().is_none_or(|(key, _)| is_no_place(key)) || next == markers {
                return Err(self.cut_short(prefix));
            }
            markers = next;
        }
        Err(self.endless(prefix))
    }

    async fn page(
        &self,
        prefix: &str,
        token: Option<String>,
        most: Option<u32>,
    ) -> Result<Objects> {
        let mut call = Call::new("list", Method::Get, "");
        call = call.with("list-type", "2").with("prefix", prefix);
        if let Some(token) = token {
            call = call.with("continuation-token", token);
        }
        if let Some(most) = most {
            call = call.with("max-keys", most.to_string());
        }
        let answered = self.call(&call).await?;
        let answered = answered.ok_or_else(|| self.odd(&call))?;
        let page = Objects::read(&answered.text());
        page.map_err(|reason| self.failed(&call, reason))
    }

    /// What is not in such a list may be there.
    fn cut_short(&self, prefix: &str) -> super::Error {
        let call = Call::new("list", Method::Get, prefix);
        let reason = "the server cut its list short, and does not say where it goes on";
        self.failed(&call, reason.to_owned())
    }

    fn endless(&self, prefix: &str) -> super::Error {
        let call = Call::new("list", Method::Get, prefix);
        self.failed(&call, "it has too many entries".to_owned())
    }

    /// An answer that the request cannot have.
    pub(super) fn odd(&self, call: &Call<'_>) -> super::Error {
        self.failed(
            call,
            "the server says that there is no such object".to_owned(),
        )
    }
}

/// Whether a list cannot go on at this place.
const fn is_no_place(place: &str) -> bool {
    place.is_empty() || place.len() > TOKEN
}
