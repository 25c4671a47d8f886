//! Paths as users write them.
//!
//! Invariant: two texts that name the same path without links and `..` are equal once cleaned.
//! Failure: none; whether a path is allowed is checked elsewhere.

/// A path without repeated slashes, `.` and a slash at the end. `..` stays.
pub fn clean_path(path: &str) -> String {
    let root = if path.starts_with('/') { "/" } else { "" };
    let parts = path.split('/').filter(|part| !matches!(*part, "" | "."));
    format!("{root}{}", parts.collect::<Vec<_>>().join("/"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("/srv/data/", "/srv/data")]
    #[case("//srv///./data/.", "/srv/data")]
    #[case("/", "/")]
    #[case("/./", "/")]
    #[case("", "")]
    #[case("srv/data/", "srv/data")]
    #[case("/srv/.data", "/srv/.data")]
    #[case("/srv/../data", "/srv/../data")]
    fn a_path_of_a_user_is_cleaned(#[case] written: &str, #[case] clean: &str) {
        assert_eq!(clean_path(written), clean);
    }
}
