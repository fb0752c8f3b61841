//! Checks an image: `cargo run --example check -- disk.img`.

use std::process::ExitCode;

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let image = std::env::args_os().nth(1).ok_or("usage: check IMAGE")?;
    let options = sapwood::CheckOptions::default();
    let report = sapwood::check(image, &options, &mut |step| {
        if let sapwood::Progress::Done { phase, done } = step {
            eprint!("\r{phase} {done}");
        }
    })?;
    eprintln!();
    for finding in &report.findings {
        println!("{}: {finding}", finding.code);
    }
    Ok(ExitCode::from(u8::from(!report.clean)))
}
