//! The answer files of Windows Setup.
//!
//! Invariant: a pod with answer files has no data for cloud-init, since one guest reads one of both.
//! Failure: an [`AnnotationError`] for a pod that has both; [`GuestDataError`] for a source without an
//! answer file.

use std::collections::BTreeMap;

use super::assemble::{GuestDataError, Sources, content};
use super::source::Named;
use super::{Content, GuestData, Source};
use crate::annotations::{AnnotationError, Annotations, Key};

/// What Windows Setup looks for in the top directory of removable media: the first for most passes of
/// the configuration, the second for those of the installation.
pub const ANSWER_FILES: [&str; 2] = ["unattend.xml", "autounattend.xml"];

/// An answer file. Debug output shows no content.
#[derive(Clone, PartialEq, Eq)]
pub struct AnswerFile {
    /// One of [`ANSWER_FILES`].
    pub name: &'static str,
    /// What is in it.
    pub content: Vec<u8>,
}

impl std::fmt::Debug for AnswerFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} bytes)", self.name, self.content.len())
    }
}

/// The data of a pod that names a source of answer files; `None` for any other pod.
pub(super) fn from_pod(
    given: Annotations<'_>,
    others: &GuestData,
) -> Result<Option<GuestData>, AnnotationError> {
    let key = Key::SysprepSource;
    let source = match given.get::<Named>(key)? {
        None => return Ok(None),
        Some(Named { key: Some(_), .. }) => {
            let [first, second] = ANSWER_FILES;
            let reason = format!(
                "\"configmap/NAME\" or \"secret/NAME\" is needed: its keys are {first} and {second}"
            );
            return Err(given.refuse(key, reason));
        }
        Some(named) => named.source,
    };
    if *others != GuestData::default() {
        let reason = "the pod has annotations for cloud-init, too: use one of them";
        return Err(given.refuse(key, reason.to_owned()));
    }
    Ok(Some(GuestData {
        sysprep: Some(source),
        ..GuestData::default()
    }))
}

impl GuestData {
    /// The answer files, from the content of [`Self::sources`]; `None` for a guest that gets a
    /// cloud-init disk.
    ///
    /// # Errors
    ///
    /// [`GuestDataError`] for a source without an answer file.
    pub fn answer_files(
        &self,
        sources: &BTreeMap<Source, Content>,
    ) -> Result<Option<Vec<AnswerFile>>, GuestDataError> {
        let source = self.sysprep.as_ref();
        source
            .map(|source| answer_files(source, sources))
            .transpose()
    }
}

fn answer_files(source: &Source, all: &Sources) -> Result<Vec<AnswerFile>, GuestDataError> {
    let keys = &content(all, source)?.0;
    let found = ANSWER_FILES.into_iter().filter_map(|name| {
        let content = keys.get(name)?.clone();
        Some(AnswerFile { name, content })
    });
    let found: Vec<_> = found.collect();
    if found.is_empty() {
        Err(GuestDataError::NoKey {
            of: source.clone(),
            key: ANSWER_FILES.join(" and no key "),
        })
    } else {
        Ok(found)
    }
}
