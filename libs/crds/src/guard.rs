//! An object of a list or a watch that may be unreadable without hiding the others.
//!
//! `kube::core::DeserializeGuard` has the same shape, and needs metadata that can be read: a time in
//! `managedFields` that no program can represent, or a field that is nested deeper than the JSON
//! reader goes, still ends the whole list.
//!
//! Invariant: every JSON object can be read as [`Guarded`]. Times and fields of `managedFields`
//! are never looked at; depth and number of values have bounds.
//! Failure: the reason is in [`Unreadable`], with the object's identity.

mod buffer;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::{Deserialize, DeserializeOwned, DeserializeSeed, Deserializer};
use serde_json::Value;

use buffer::{Buffer, Limits, Place};

/// Longest description of what could not be read, in bytes: it may quote the object.
const LONGEST: usize = 256;

/// An object of kind `K`, or why it cannot be read.
#[derive(Debug, Clone)]
pub struct Guarded<K>(pub Result<K, Unreadable>);

/// An object that cannot be read.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{error}")]
pub struct Unreadable {
    /// Why.
    pub error: String,
    /// Its metadata; if they are what cannot be read, name, namespace, UID and version only.
    pub metadata: ObjectMeta,
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut limits = Limits::default();
        let buffer = Buffer::new(&mut limits, Place::Object);
        let object = buffer.deserialize(deserializer)?;
        let read = match limits.exceeded() {
            Some(which) => Err(which.to_owned()),
            None => K::deserialize(&object).map_err(|error| error.to_string()),
        };
        Ok(Self(read.map_err(|mut error| {
            let end = LONGEST.min(error.len());
            let end = (0..=end).rev().find(|end| error.is_char_boundary(*end));
            error.truncate(end.unwrap_or_default());
            let metadata = metadata(&object["metadata"]);
            Unreadable { error, metadata }
        })))
    }
}

/// As much of the metadata as can be read.
fn metadata(found: &Value) -> ObjectMeta {
    ObjectMeta::deserialize(found).unwrap_or_else(|_| {
        let text = |key: &str| found[key].as_str().map(str::to_owned);
        ObjectMeta {
            name: text("name"),
            namespace: text("namespace"),
            uid: text("uid"),
            resource_version: text("resourceVersion"),
            ..ObjectMeta::default()
        }
    })
}

impl<K: Resource> Resource for Guarded<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    /// Whether only the metadata of the object are read, and so requested.
    fn metadata_api() -> bool {
        K::metadata_api()
    }

    fn kind(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        match &self.0 {
            Ok(object) => object.meta(),
            Err(unreadable) => &unreadable.metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match &mut self.0 {
            Ok(object) => object.meta_mut(),
            Err(unreadable) => &mut unreadable.metadata,
        }
    }
}
