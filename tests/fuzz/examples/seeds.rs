//! Writes the seeds of one target into a folder: `seeds TARGET FOLDER`.

use std::fs;
use std::path::PathBuf;

fn main() {
    let mut args = std::env::args().skip(1);
    let (Some(target), Some(folder)) = (args.next(), args.next().map(PathBuf::from)) else {
        eprintln!("seeds TARGET FOLDER");
        std::process::exit(2);
    };
    fs::create_dir_all(&folder).expect("a folder");
    for (name, bytes) in berth_tests_fuzz::seeds::of(&target) {
        fs::write(folder.join(format!("seed-{name}")), bytes).expect("a file");
    }
}
