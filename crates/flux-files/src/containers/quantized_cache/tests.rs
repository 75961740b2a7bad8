use std::fs;
use std::time::{Duration, UNIX_EPOCH};

use safetensors::Dtype as FileDtype;
use safetensors::tensor::TensorView as FileTensor;
use serde_json::Value;

use super::origin::{FNV_BASIS, FORMAT, fnv1a};
use super::*;
use crate::Folder;

const DOUBLE: &str = "transformer_blocks.0.attn.to_q.weight";
const SINGLE: &str = "single_transformer_blocks.11.attn.to_out.weight";
const VECTOR: &str = "transformer_blocks.0.attn.norm_q.weight";
const OUTSIDE: &str = "x_embedder.weight";

fn is_held(name: &str) -> bool {
    name != OUTSIDE
}

/// A folder with weights.
struct Model(tempfile::TempDir);

impl Model {
    fn new() -> Self {
        let model = Self(tempfile::tempdir().unwrap());
        fs::create_dir(model.path().join("transformer")).unwrap();
        model.write(1.0, &[]);
        model
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn source(&self) -> PathBuf {
        self.path().join("transformer/diffusion_pytorch_model.safetensors")
    }

    fn cache(&self) -> PathBuf {
        self.path().join(FILE)
    }

    /// Writes weights times `factor`, and further matrices in the blocks.
    fn write(&self, factor: f32, further: &[&str]) {
        let value = |i: usize| factor * ((i * 37 % 101) as f32 - 50.0) / 3.0;
        let as_bf16: Vec<u8> = (0..40 * 32).flat_map(|i| bf16::from_f32(value(i)).to_le_bytes()).collect();
        let as_f32: Vec<u8> = (0..40 * 32).flat_map(|i| value(i).to_le_bytes()).collect();
        let tensor = |dtype: FileDtype, shape: &[usize]| {
            let bytes = if dtype == FileDtype::F32 { &as_f32 } else { &as_bf16 };
            let len = shape.iter().product::<usize>() * dtype.bitsize() / 8;
            FileTensor::new(dtype, shape.to_vec(), &bytes[..len]).unwrap()
        };
        let mut tensors = vec![
            (DOUBLE, tensor(FileDtype::BF16, &[5, 20])),
            (SINGLE, tensor(FileDtype::F32, &[40, 32])),
            (VECTOR, tensor(FileDtype::BF16, &[16])),
            (OUTSIDE, tensor(FileDtype::BF16, &[8, 8])),
        ];
        tensors.extend(further.iter().map(|name| (*name, tensor(FileDtype::BF16, &[3, 16]))));
        safetensors::serialize_to_file(tensors, None, &self.source()).unwrap();
    }

    fn open(&self) -> TensorFiles {
        let folder = Folder::Disk(self.path().join("transformer"));
        folder.tensors("diffusion_pytorch_model").unwrap()
    }

    fn attach(&self) -> (TensorFiles, Result<QuantizedCache>) {
        let mut files = self.open();
        let attached = attach(self.path(), &mut files, is_held, &mut |_, _| Ok(()));
        (files, attached)
    }

    #[track_caller]
    fn is_found(&self) {
        assert_eq!(self.attach().1.unwrap(), QuantizedCache::Found);
    }

    /// Asserts that the file is rewritten for this reason.
    #[track_caller]
    fn is_made_anew(&self, words: &str) {
        let made = self.attach().1.unwrap();
        assert!(
            matches!(&made, QuantizedCache::Made(path, Some(why)) if *path == self.cache() && why.contains(words)),
            "{made:?}"
        );
        assert!(made.note().unwrap().contains(words));
        self.is_found();
    }

    fn change_header(&self, change: impl FnOnce(&mut Map<String, Value>)) {
        let bytes = fs::read(self.cache()).unwrap();
        let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let mut header = serde_json::from_slice(&bytes[8..end]).unwrap();
        change(&mut header);
        let header = serde_json::to_vec(&header).unwrap();
        fs::write(self.cache(), [(header.len() as u64).to_le_bytes().as_slice(), &header, &bytes[end..]].concat())
            .unwrap();
    }

    fn change_origin(&self, change: impl FnOnce(&mut Value)) {
        self.change_header(|header| {
            let said = &mut header["__metadata__"][ORIGIN_KEY];
            let mut origin = serde_json::from_str(said.as_str().unwrap()).unwrap();
            change(&mut origin);
            *said = json!(origin.to_string());
        });
    }
}

#[test]
fn every_matrix_that_it_holds_is_there_as_e4m3() {
    let model = Model::new();
    let (made, cache) = model.attach();
    assert_eq!(cache.unwrap(), QuantizedCache::Made(model.cache(), None));
    let (found, cache) = model.attach();
    assert_eq!(cache.unwrap(), QuantizedCache::Found);
    for files in [&made, &found] {
        for (name, [rows, cols]) in [(DOUBLE, [5, 20]), (SINGLE, [40, 32])] {
            let view = files.get(name, &[rows, cols]).unwrap();
            let quantized = view.quantized().expect("it is one of them");
            assert_eq!((quantized.format(), quantized.shape()), (Format::E4m3Rows, &[rows, cols][..]));
            for row in 0..rows {
                let from: Vec<f32> = view
                    .row_range(row..row + 1)
                    .to_f32()
                    .into_iter()
                    .map(|value| bf16::from_f32(value).to_f32())
                    .collect();
                let mut expected = vec![0; 32];
                let scale = quantize_row(&from, &mut expected);
                let part = view.row_range(row..row + 1);
                let part = part.quantized().expect("rows of it have it too");
                assert_eq!(
                    (part.bytes(), part.row_scales().unwrap().bytes()),
                    (&expected[..], &scale.to_le_bytes()[..]),
                    "row {row} of {name}"
                );
            }
        }
        assert!(files.get(VECTOR, &[16]).unwrap().quantized().is_none());
        assert!(files.get(OUTSIDE, &[8, 8]).unwrap().quantized().is_none());
    }
    let names: Vec<_> = fs::read_dir(model.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "no partial file is left: {names:?}");
}

/// This version reads files of other versions, and other versions read its files.
#[test]
fn the_bytes_are_those_of_the_format() {
    let model = Model::new();
    let source = fs::File::options().append(true).open(model.source()).unwrap();
    source.set_modified(UNIX_EPOCH + Duration::from_secs(1)).unwrap();
    model.attach().1.unwrap();
    let bytes = fs::read(model.cache()).unwrap();
    assert_eq!((bytes.len(), fnv1a(FNV_BASIS, &bytes)), (2260, 16_249_874_419_246_570_312));
}

#[test]
fn a_file_that_fits_is_left_alone() {
    let model = Model::new();
    model.attach().1.unwrap();
    let before = (fs::read(model.cache()).unwrap(), fs::metadata(model.cache()).unwrap().modified().unwrap());
    model.is_found();
    assert!(before == (fs::read(model.cache()).unwrap(), fs::metadata(model.cache()).unwrap().modified().unwrap()));
}

#[test]
fn making_it_is_reported_to_the_end() {
    let model = Model::new();
    let mut files = model.open();
    let mut reports = Vec::new();
    let mut report = |done, total| {
        reports.push((done, total));
        Ok(())
    };
    attach(model.path(), &mut files, is_held, &mut report).unwrap();
    let total = 5 * 20 + 40 * 32;
    assert_eq!(reports, [(0, total), (40 * 32, total), (total, total)]);
}

#[test]
fn a_report_that_cancels_ends_the_writing_and_leaves_what_was_there() {
    let model = Model::new();
    let cancel_after = |elements: u64| {
        let mut files = model.open();
        let mut report = |done, _| if done >= elements { Err(Error::cancelled()) } else { Ok(()) };
        let error = attach(model.path(), &mut files, is_held, &mut report).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
        assert!(files.get(DOUBLE, &[5, 20]).unwrap().quantized().is_none());
    };
    let entries = || fs::read_dir(model.path()).unwrap().count();
    // Before the first matrix, after it, and when only the final rename is missing.
    for elements in [0, 1, 5 * 20 + 40 * 32] {
        cancel_after(elements);
        assert_eq!(entries(), 1, "neither the file nor a partial one is left after {elements} elements");
    }
    model.attach().1.unwrap();
    let old = fs::read(model.cache()).unwrap();
    model.write(-1.0, &[]);
    cancel_after(1);
    assert!(fs::read(model.cache()).unwrap() == old && entries() == 2);
    model.is_made_anew("diffusion_pytorch_model.safetensors");
}

#[test]
fn other_weights_make_it_anew() {
    let model = Model::new();
    model.attach().1.unwrap();
    let time = fs::metadata(model.source()).unwrap().modified().unwrap();
    let set_time = |time| fs::File::options().append(true).open(model.source()).unwrap().set_modified(time).unwrap();

    set_time(time + Duration::from_millis(1));
    model.is_made_anew("diffusion_pytorch_model.safetensors");
    set_time(UNIX_EPOCH - Duration::from_secs(1));
    model.is_made_anew("diffusion_pytorch_model.safetensors");
    set_time(time);
    model.is_made_anew("diffusion_pytorch_model.safetensors");

    model.write(-1.0, &[]);
    set_time(time);
    model.is_made_anew("diffusion_pytorch_model.safetensors");
    let value = |files: &TensorFiles| files.get(DOUBLE, &[5, 20]).unwrap().quantized().unwrap().bytes()[0];
    assert_eq!(value(&model.attach().0) & 0x80, 0, "the values of the new weights, the first is 50 / 3");

    model.write(-1.0, &["transformer_blocks.1.more.weight"]);
    set_time(time);
    model.is_made_anew("diffusion_pytorch_model.safetensors");
    assert!(model.attach().0.get("transformer_blocks.1.more.weight", &[3, 16]).unwrap().quantized().is_some());
}

#[test]
fn a_file_of_another_kind_is_made_anew() {
    let model = Model::new();
    model.attach().1.unwrap();
    for format in [FORMAT - 1, FORMAT + 1] {
        model.change_origin(|origin| origin["format"] = json!(format));
        model.is_made_anew(&format!("format is {format}"));
    }
    model.change_origin(|origin| {
        let first = origin["sources"][0].clone();
        origin["sources"].as_array_mut().unwrap().push(first);
    });
    model.is_made_anew("more files");
    model.change_origin(|origin| origin["sources"] = json!([]));
    model.is_made_anew("another `transformer/");
    let [no_sources, more] =
        ["", r#","sources":[],"more":1"#].map(|further| format!(r#"{{"format":{FORMAT}{further}}}"#));
    for said in ["", "{}", "[1]", "not JSON", &no_sources, &more] {
        model.change_header(|header| header["__metadata__"][ORIGIN_KEY] = json!(said));
        model.is_made_anew("does not name");
    }
    model.change_header(|header| drop(header.remove("__metadata__")));
    model.is_made_anew("does not name");
}

#[test]
fn a_damaged_file_is_an_error_that_says_what_to_do() {
    let model = Model::new();
    model.attach().1.unwrap();
    let good = fs::read(model.cache()).unwrap();
    let refused = |what: &str, word: &str| {
        let error = model.attach().1.unwrap_err().to_string();
        assert!(error.contains(FILE) && error.contains("hint: ") && error.contains(word), "{what}: {error}");
        fs::write(model.cache(), &good).unwrap();
        model.is_found();
    };
    for keep in [0, 4, 8, 100, good.len() / 2, good.len() - 1] {
        fs::write(model.cache(), &good[..keep]).unwrap();
        refused(&format!("cut off at {keep}"), "");
    }
    for length in [u64::MAX, i64::MAX as u64, 1 << 40] {
        fs::write(model.cache(), [length.to_le_bytes().as_slice(), &good[8..]].concat()).unwrap();
        refused(&format!("a header of {length} bytes"), "not a valid safetensors file");
    }
    let scales = scales_name(SINGLE);
    model.change_header(|header| {
        let entry = header.remove(DOUBLE).unwrap();
        header.insert("transformer_blocks.0.other".to_string(), entry);
    });
    refused("a matrix of another name", &format!("`{DOUBLE}` is missing"));
    model.change_header(|header| header[SINGLE]["dtype"] = json!("I8"));
    refused("values of another type", "dtype I8");
    model.change_header(|header| header[&scales]["dtype"] = json!("I32"));
    refused("scales of another type", "dtype I32");
    model.change_header(|header| header[SINGLE]["shape"] = json!([32, 40]));
    refused("another shape", "[32, 40], expected [40, 32]");
    model.change_header(|header| header[SINGLE]["data_offsets"] = json!([0, 1u64 << 40]));
    refused("an offset behind the end", "not a valid safetensors file");
}

#[test]
fn a_file_that_cannot_be_written_is_said_and_costs_nothing() {
    let model = Model::new();
    fs::create_dir_all(model.cache().join("in the way")).unwrap();
    let (files, cache) = model.attach();
    let cache = cache.unwrap();
    assert!(matches!(&cache, QuantizedCache::NotMade(path, _) if *path == model.cache()), "{cache:?}");
    assert!(cache.note().unwrap().contains("cannot be written"));
    assert!(files.get(DOUBLE, &[5, 20]).unwrap().quantized().is_none());
    assert_eq!(fs::read_dir(model.path()).unwrap().count(), 2, "no partial file is left");
}

#[test]
fn a_pipe_in_its_place_is_refused_and_stays() {
    let model = Model::new();
    let made = std::process::Command::new("mkfifo").arg(model.cache()).status();
    assert!(made.is_ok_and(|made| made.success()), "mkfifo is installed");
    let error = model.attach().1.unwrap_err().to_string();
    assert!(error.contains("not a regular file") && error.contains(FILE), "{error}");
    assert!(!fs::metadata(model.cache()).unwrap().is_file());
}
