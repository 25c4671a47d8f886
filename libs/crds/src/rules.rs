//! Validation rules in CEL that several kinds share.
//!
//! Invariant: a rule names the field in its message, so that the reader of a refusal knows what to
//! change.
//! Failure: none; an expression that the API server does not take makes the tests of `deploy/crds/`
//! fail.

use kube::core::{Message, Reason, Rule};

/// An RFC 1123 label.
pub(crate) const LABEL: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
/// An RFC 1123 subdomain, as most objects are named.
pub(crate) const SUBDOMAIN: &str =
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// A key of a label, with or without a domain.
pub(crate) const LABEL_KEY: &str =
    r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";
/// A UUID in lower case.
pub(crate) const UUID: &str = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$";
/// A target of backups, as nodes name it: a label, or a claim by its UID.
pub(crate) const BACKUP_TARGET: &str = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?|claim:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})$";
/// A MAC address of one station.
const MAC: &str = "^[0-9a-fA-F][02468aAcCeE](:[0-9a-fA-F]{2}){5}$";
/// A duration as Go writes it, such as `90s` or `1h30m`. Longer numbers would be more than CEL's
/// durations hold, which rules compare.
pub(crate) const DURATION: &str =
    r"^([0-9]{1,5}(\.[0-9]{1,9})?h|[0-9]{1,7}(\.[0-9]{1,9})?m|[0-9]{1,9}(\.[0-9]{1,9})?m?s){1,4}$";
/// Characters of a schedule; the controller reads it.
pub(crate) const SCHEDULE: &str = "^(@[a-z]+|[-A-Za-z0-9*/,?#]+( +[-A-Za-z0-9*/,?#]+){4})$";
/// A time of RFC 3339, in years that every program of ours can read.
pub(crate) const TIME: &str = r"^[12][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[-+][0-9]{2}:[0-9]{2})$";
/// A digest of SHA-256.
pub(crate) const DIGEST: &str = "^sha256:[0-9a-f]{64}$";
/// A digest of SHA-256 or SHA-512: a version of an image that is updated.
pub(crate) const VERSION: &str = "^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$";
/// A URL of the web, without credentials, which every reader of the object could read too.
pub(crate) const WEB_URL: &str = r"^https?://[^\s@/]+(/[^\s]*)?$";

/// A URL of an image: as [`WEB_URL`], or `oci://` and the name of an image in a registry.
pub(crate) const IMAGE_URL: &str = r"^(https?://[^\s@/]+(/[^\s]*)?|oci://[^\s@/]+/[^\s]+)$";
/// What a word such as a format or a CPU model consists of.
pub(crate) const WORD: &str = "^[A-Za-z0-9][-A-Za-z0-9_.+]*$";

/// A board that nodes have: the newest q35, or a version of it.
pub(crate) const MACHINE_TYPE: &str = r"^(q35|pc-q35-[A-Za-z0-9._-]+)$";

/// A rule that is broken by the value itself.
pub(crate) fn rule(expression: impl Into<String>, message: impl Into<String>) -> Rule {
    Rule::new(expression).message(Message::Message(message.into()))
}

/// A rule that is broken by an edit.
pub(crate) fn edit(expression: impl Into<String>, message: impl Into<String>) -> Rule {
    rule(expression, message).reason(Reason::FieldValueForbidden)
}

/// A rule of the whole object that is broken by an edit of this field of the specification. kubectl
/// prints `<nil>` as the field of such a rule that names none.
pub(crate) fn edit_of(
    field: &str,
    expression: impl Into<String>,
    message: impl Into<String>,
) -> Rule {
    edit(expression, message).field_path(format!(".spec.{field}"))
}

/// The field may be neither changed nor added nor removed. (Optional values would say it in fewer
/// words, but have no bound for the estimate of costs.)
pub(crate) fn immutable(field: &str) -> Rule {
    let same = format!(
        "has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == \
         oldSelf.{field})"
    );
    edit(same, format!("{field} is immutable"))
}

/// A MAC address of one station.
pub(crate) fn mac() -> Rule {
    rule(
        format!("self.matches('{MAC}')"),
        "must be the MAC address of one station, such as 52:54:00:12:34:56; the second digit is even",
    )
}

/// A URL of the web.
pub(crate) fn web_url() -> Rule {
    let pattern = WEB_URL.replace('\\', r"\\");
    rule(
        format!("self.matches('{pattern}')"),
        "must be a URL such as https://images.example/debian.qcow2, with http or https, and without \
         user, password and spaces",
    )
}

/// A quantity above zero.
pub(crate) fn positive() -> Rule {
    rule(
        "isQuantity(string(self)) && quantity(string(self)).isGreaterThan(quantity('0'))",
        "must be a quantity greater than 0, such as 2 or 512Mi",
    )
}

/// An amount of bytes that is a whole number of MiB. What is beyond [`between`]'s bounds is left to
/// it: the API server has no integer for a quantity such as 512Ti.
pub(crate) fn mebibytes() -> Rule {
    rule(
        "isQuantity(string(self)) && (quantity(string(self)).isLessThan(quantity('1Mi')) || \
         quantity(string(self)).isGreaterThan(quantity('64Ti')) || \
         quantity(string(self)).isInteger() && quantity(string(self)).asInteger() % 1048576 == 0)",
        "must be a whole number of MiB, such as 512Mi or 4Gi",
    )
}

/// A Go duration of at most a week, which also what kubelet counts as grace can hold.
pub(crate) fn a_week() -> Rule {
    rule("duration(self) <= duration('168h')", "must be at most 168h")
}

/// A quantity from `least` to `most`, which is at most 64Ti.
pub(crate) fn between(least: &str, most: &str) -> Rule {
    let size = "quantity(string(self))";
    rule(
        format!(
            "!isQuantity(string(self)) || !{size}.isLessThan(quantity('{least}')) && \
             !{size}.isGreaterThan(quantity('{most}'))"
        ),
        format!("must be from {least} to {most}"),
    )
}
