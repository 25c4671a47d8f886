//! Selects the runtime of a new pod or an image from the fields that its owner set.
//!
//! Invariant: a pure function of configuration and request. Two hints for different runtimes, or
//! one that no runtime is known for, are errors; they never mean the primary. A pod gets a secondary
//! by a handler, or by an annotation that the configuration lists: policies, overhead and nodes of a
//! RuntimeClass apply to all other pods.
//! Failure: [`Unclear`], which states what the author of the pod has to change.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::config::Config;
use crate::state::BackendIndex;
use crate::wire::{Image, SandboxConfig};

/// The annotation that names a runtime.
pub(crate) const TARGET: &str = "kubernetes.io/target-runtime";

/// What pods of Virtlet have there; the prefix of their images is the same.
const VIRTLET: &str = "virtlet.cloud";

/// The primary.
pub(crate) const PRIMARY: BackendIndex = BackendIndex(0);

/// Hints that do not lead to one runtime.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unclear {
    /// No runtime is known for the annotation's value.
    #[error("annotation {TARGET} names {0:?}, which is no runtime of this node")]
    UnknownTarget(String),
    /// The annotation names a runtime that pods get by a RuntimeClass.
    #[error(
        "annotation {TARGET} names {0:?}, whose pods need its RuntimeClass: set runtimeClassName, or an \
         administrator lists the value in target_runtimes of vmlet-criproxy"
    )]
    ClassRequired(String),
    /// Handler and annotation differ.
    #[error(
        "runtime handler {handler:?} and annotation {TARGET}: {target:?} are different runtimes"
    )]
    Contradiction {
        /// The handler.
        handler: String,
        /// The annotation's value.
        target: String,
    },
}

/// The runtime of a new sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Choice {
    /// The runtime.
    pub(crate) backend: BackendIndex,
    /// The handler is one that this runtime does not know: the annotation alone decided.
    pub(crate) blank_handler: bool,
}

/// The configured hints.
#[derive(Debug)]
pub(crate) struct Routes {
    handlers: HashMap<String, BackendIndex>,
    targets: HashMap<String, BackendIndex>,
    /// Values that select a runtime for a pod without one of its handlers.
    sufficient: HashSet<String>,
    prefixes: Vec<(String, BackendIndex)>,
}

impl Routes {
    pub(crate) fn new(config: &Config) -> Self {
        let mut routes = Self {
            handlers: HashMap::new(),
            targets: HashMap::from([(config.primary.name.clone(), PRIMARY)]),
            sufficient: HashSet::from([config.primary.name.clone()]),
            prefixes: Vec::new(),
        };
        for (at, secondary) in config.secondary.iter().enumerate() {
            let index = BackendIndex(at + 1);
            let handlers = secondary.handlers.iter();
            routes.handlers.extend(handlers.map(|h| (h.clone(), index)));
            let targets = secondary.target_runtimes.iter();
            routes
                .targets
                .extend(targets.clone().map(|t| (t.clone(), index)));
            routes.sufficient.extend(targets.cloned());
            let prefixes = secondary.image_prefixes.iter();
            routes.prefixes.extend(prefixes.map(|p| (p.clone(), index)));
        }
        // What no runtime lists agrees with a handler, and is not enough without one.
        for (at, secondary) in config.secondary.iter().enumerate() {
            let is_virtlets = |prefix: &String| prefix.trim_end_matches('/') == VIRTLET;
            let alias = secondary.image_prefixes.iter().any(is_virtlets);
            let implied = alias.then_some(VIRTLET).into_iter();
            for name in implied.chain([secondary.name.as_str()]) {
                let target = routes.targets.entry(name.to_owned());
                target.or_insert(BackendIndex(at + 1));
            }
        }
        // The most specific prefix decides.
        let longest = |(prefix, _): &(String, _)| std::cmp::Reverse(prefix.len());
        routes.prefixes.sort_by_key(longest);
        routes
    }

    /// The runtime that serves a handler, if a secondary does.
    pub(crate) fn of_handler(&self, handler: &str) -> Option<BackendIndex> {
        self.handlers.get(handler).copied()
    }

    /// The runtime of a new sandbox.
    pub(crate) fn sandbox(
        &self,
        handler: &str,
        config: Option<&SandboxConfig>,
    ) -> Result<Choice, Unclear> {
        let none = BTreeMap::new();
        let annotations = config.map_or(&none, |c| &c.annotations);
        let hint = self.hint(handler, annotations)?;
        let backend = hint.unwrap_or(PRIMARY);
        let by_annotation = backend != PRIMARY && self.of_handler(handler).is_none();
        let target = annotations.get(TARGET).map(String::as_str);
        let target = target.unwrap_or_default();
        if by_annotation && !self.sufficient.contains(target) {
            return Err(Unclear::ClassRequired(short(target)));
        }
        Ok(Choice {
            backend,
            blank_handler: by_annotation && !handler.is_empty(),
        })
    }

    /// The runtime that an image's own hints name.
    pub(crate) fn image(&self, image: &Image) -> Result<Option<BackendIndex>, Unclear> {
        let hint = self.hint(&image.runtime_handler, &image.annotations)?;
        Ok(hint.or_else(|| {
            let mut prefixes = self.prefixes.iter();
            prefixes
                .find(|(prefix, _)| image.name.starts_with(prefix))
                .map(|(_, backend)| *backend)
        }))
    }

    /// The runtime that a pod's annotation names.
    pub(crate) fn annotated(
        &self,
        config: &SandboxConfig,
    ) -> Result<Option<BackendIndex>, Unclear> {
        self.hint("", &config.annotations)
    }

    fn hint(
        &self,
        handler: &str,
        annotations: &BTreeMap<String, String>,
    ) -> Result<Option<BackendIndex>, Unclear> {
        let by_handler = self.of_handler(handler);
        let Some(target) = annotations.get(TARGET).filter(|target| !target.is_empty()) else {
            return Ok(by_handler);
        };
        let Some(&by_target) = self.targets.get(target) else {
            return Err(Unclear::UnknownTarget(short(target)));
        };
        match by_handler {
            Some(other) if other != by_target => Err(Unclear::Contradiction {
                handler: short(handler),
                target: short(target),
            }),
            _ => Ok(Some(by_target)),
        }
    }
}

/// A hostile text, cut for a message.
fn short(text: &str) -> String {
    text.chars().take(100).collect()
}

#[cfg(test)]
mod tests;
