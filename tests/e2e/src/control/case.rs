//! Cases of a test that share one API server.
//!
//! Invariant: cases run one after the other, in their order.
//! Failure: the first case that fails ends the test, and its name is in the error; the name is
//! printed before the case begins, so that it is above the message of a panic, too.

use std::time::Instant;

use anyhow::{Context, Result};

use super::Control;

impl Control {
    /// Runs one case; [`cases!`](crate::cases) calls it.
    #[doc(hidden)]
    pub async fn case(name: &str, case: impl Future<Output = Result<()>>) -> Result<()> {
        let name = name.replace(' ', "").replace('_', " ");
        eprintln!("case: {name}");
        let begun = Instant::now();
        case.await.with_context(|| name)?;
        eprintln!("    {:.1?}", begun.elapsed());
        Ok(())
    }
}

/// Runs cases, each an `async fn` of what is given first; the sentence of a case is its name.
#[macro_export]
macro_rules! cases {
    ($given:expr, [$($case:path),+ $(,)?]) => {
        $($crate::Control::case(stringify!($case), $case($given)).await?;)+
    };
}
