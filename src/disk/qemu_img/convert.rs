//! Converts images of other formats to qcow2.
//!
//! Invariant: as of every use of the program; the file that it writes belongs to the image store,
//! which has claimed the space.
//! Failure: [`Unconverted`]; the store removes what was written.

use std::fs::File;

use futures_util::future::BoxFuture;

use super::{QemuImg, Time, blocking, is_too_much, open, run};
use crate::helper::path_of;
use crate::images::{Conversion, Converter, Unconverted};

impl Converter for QemuImg {
    fn convert<'a>(&'a self, work: &'a Conversion) -> BoxFuture<'a, Result<(), Unconverted>> {
        Box::pin(async move {
            let converted = self.convert_image(work).await;
            converted.map_err(|reason| match is_too_much(&reason) {
                true => Unconverted::TooLarge,
                false => Unconverted::Failed(reason),
            })
        })
    }
}

impl QemuImg {
    async fn convert_image(&self, work: &Conversion) -> Result<(), String> {
        let image = open(&work.source).await?;
        let path = work.target.clone();
        let opened = blocking(move || File::options().read(true).write(true).open(path));
        let target = opened.await.map_err(|e| format!("open its file: {e}"))?;
        let disk = self.lend(target).await?;
        let file = disk.inherited()?;
        let names = [path_of(&image), path_of(&file)];
        let time = Time::long(work.most);
        let mut command = self.program(vec![image, file], work.most, time)?;
        command.args(["convert", "-p", "-O", "qcow2", "-f", work.from.as_str()]);
        command.args(names);
        run(command, time, |_| {}).await
    }
}
