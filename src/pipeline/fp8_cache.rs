//! The narrow weights of a transformer in e4m3, in a file beside the model: half the bytes of bf16 to read and upload,
//! and nothing to quantise.
//!
//! It is a safetensors file. A matrix [rows, cols] has its name there, in F8_E4M3 [rows, cols padded to a multiple of
//! 16], and its scales in F32 [rows] are `NAME.scales`. The header's metadata say what the matrices were made from; a
//! file that was made from others is not read.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use half::bf16;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::files::e4m3::{MULTIPLE, quantise_row};
use crate::files::{Format, Safetensors, TensorFiles, TensorView, scales_name};
use crate::nn::WeightPolicy;

/// Its name in the model's folder.
pub const FILE: &str = "flux-fp8.safetensors";
/// Changes when the same weights would make another file.
const FORMAT: u32 = 2;
/// Where the header's metadata have the [`Origin`], as JSON.
const ORIGIN_KEY: &str = "flux_fp8";
const REMEDY: &str = "delete the file: the next run with `--fp8-cache` makes it anew";
/// Of each matrix so many bytes are looked at to tell its file from another of the same size and time.
const SAMPLE_BYTES: usize = 1024;
/// Rows that one task quantises.
const TASK_ROWS: usize = 16;

/// What a file was made from.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Origin {
    format: u32,
    sources: Vec<Source>,
}

/// A file of weights.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Source {
    /// Below the model's folder.
    name: String,
    bytes: u64,
    /// When it was changed last, in nanoseconds since 1970.
    modified_ns: i64,
    /// FNV-1a of the first [`SAMPLE_BYTES`] of each matrix.
    sample: u64,
}

/// A matrix by name, with its rows and columns.
type Matrix = (String, [usize; 2]);

/// What the user may want to know of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fp8Cache {
    /// It was there.
    Found,
    /// It was made; why one that was there did not serve.
    Made(PathBuf, Option<String>),
    /// It cannot be made; why not. The weights are as they were without it.
    NotMade(PathBuf, String),
}

impl Fp8Cache {
    /// A line for the user, if there is something to say.
    pub fn note(&self) -> Option<String> {
        match self {
            Self::Found => None,
            Self::Made(path, None) => {
                Some(format!("wrote the fp8 weights to `{}`, from which they are loaded from now on", path.display()))
            }
            Self::Made(path, Some(why)) => Some(format!("wrote the fp8 weights to `{}` anew: {why}", path.display())),
            Self::NotMade(path, why) => {
                Some(format!("the fp8 weights are not kept, because `{}` cannot be written: {why}", path.display()))
            }
        }
    }
}

/// Has `files`, a transformer's, give its narrow weights in e4m3 too: from the file in `folder`, which is made where it
/// is missing or was made from other files. `report` hears how many of how many elements are in it.
///
/// Errors when the file is damaged, or the weights cannot be read.
pub fn attach(folder: &Path, files: &mut TensorFiles, report: &mut dyn FnMut(u64, u64)) -> Result<Fp8Cache> {
    let path = folder.join(FILE);
    let mut matrices = files.matrices();
    matrices.retain(|(name, _)| WeightPolicy::may_quantise(name));
    let origin = Origin::of(folder, files, &matrices)?;
    let found = if path.is_file() { Some(Safetensors::open(&path, REMEDY)?) } else { None };
    let misfit = found.as_ref().map(|found| origin.misfit(found));
    let (opened, cache) = match (found, misfit) {
        (Some(found), Some(None)) => (found, Fp8Cache::Found),
        (_, misfit) => {
            if let Err(error) = write(&path, files, &matrices, &origin, report) {
                return Ok(Fp8Cache::NotMade(path, error.to_string()));
            }
            (Safetensors::open(&path, REMEDY)?, Fp8Cache::Made(path, misfit.flatten()))
        }
    };
    for (name, shape) in &matrices {
        opened.get(name, shape, &[Format::E4m3Rows]).map_err(|e| e.hint(REMEDY))?;
    }
    files.set_quantised(opened);
    Ok(cache)
}

impl Origin {
    fn of(folder: &Path, files: &TensorFiles, matrices: &[Matrix]) -> Result<Self> {
        let views = views(files, matrices)?;
        let source = |file: &Safetensors| {
            let (path, bytes) = (file.path(), file.bytes());
            let modified = fs::metadata(path)
                .and_then(|found| found.modified())
                .map_err(|e| Error::new(format!("cannot look at the file: {e}")).at_path(path))?;
            let of_file = views.iter().filter(|view| Arc::ptr_eq(view.file(), bytes));
            Ok(Source {
                name: path.strip_prefix(folder).unwrap_or(path).display().to_string(),
                bytes: bytes.as_slice().len() as u64,
                modified_ns: nanoseconds(modified),
                sample: of_file
                    .fold(FNV_BASIS, |hash, view| fnv1a(hash, &view.bytes()[..view.bytes().len().min(SAMPLE_BYTES)])),
            })
        };
        Ok(Self { format: FORMAT, sources: files.files().iter().map(source).collect::<Result<_>>()? })
    }

    /// Why a file was not made from this, if it was not.
    fn misfit(&self, kept: &Safetensors) -> Option<String> {
        let unknown = || Some("it does not say what it was made from".to_string());
        let Some(said) = kept.metadata().get(ORIGIN_KEY) else { return unknown() };
        // The format first: what another one says may look otherwise.
        match serde_json::from_str(said).ok().and_then(|said: Value| said.get("format")?.as_u64()) {
            Some(format) if format == u64::from(FORMAT) => {}
            Some(format) => return Some(format!("its format is {format}, expected {FORMAT}")),
            None => return unknown(),
        }
        let Ok(theirs) = serde_json::from_str::<Self>(said) else { return unknown() };
        let other = self.sources.iter().find(|source| !theirs.sources.contains(source));
        match other {
            Some(source) => Some(format!("it was made from another `{}`", source.name)),
            None if theirs.sources.len() != self.sources.len() => Some("it was made from more files".to_string()),
            None => None,
        }
    }
}

const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

fn fnv1a(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// Negative before 1970; the ends of the range stand for what is beyond.
fn nanoseconds(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |nanos| -nanos),
    }
}

fn views(files: &TensorFiles, matrices: &[Matrix]) -> Result<Vec<TensorView>> {
    matrices.iter().map(|(name, shape)| files.get(name, shape)).collect()
}

/// Writes the file. Whoever looks sees a whole file or none: it gets its name when it is complete.
fn write(
    path: &Path,
    files: &TensorFiles,
    matrices: &[Matrix],
    origin: &Origin,
    report: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    let failed = |e: io::Error| Error::new(e.to_string());
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = temporary(folder).map_err(failed)?;
    let mut put = |bytes: &[u8]| file.as_file_mut().write_all(bytes).map_err(failed);
    put(&header(matrices, origin)?)?;
    let views = views(files, matrices)?;
    let total: u64 = views.iter().map(|view| view.elements() as u64).sum();
    let mut done = 0;
    report(done, total);
    for view in &views {
        let (values, scales) = quantise(view);
        put(&values)?;
        put(&scales.iter().flat_map(|scale| scale.to_le_bytes()).collect::<Vec<u8>>())?;
        done += view.elements() as u64;
        report(done, total);
    }
    // A full disk behind a network is reported by the sync, not by the write.
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|e| failed(e.error))?;
    Ok(())
}

/// A file with the rights of any new one, removed on drop, of a name that a person recognises, should a kill leave it
/// behind.
fn temporary(folder: &Path) -> io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".flux-fp8-").suffix(".part");
    #[cfg(unix)]
    builder.permissions(<Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o666)); // less the umask
    builder.tempfile_in(folder)
}

/// The length of the header and the header: where the values of each matrix are, and its scales behind them.
fn header(matrices: &[Matrix], origin: &Origin) -> Result<Vec<u8>> {
    let failed = |e: serde_json::Error| Error::new(e.to_string());
    let metadata = BTreeMap::from([(ORIGIN_KEY, serde_json::to_string(origin).map_err(failed)?)]);
    let mut entries = Map::from_iter([("__metadata__".to_string(), json!(metadata))]);
    let mut end = 0;
    let mut place = |bytes: usize| {
        let start = end;
        end += bytes;
        json!([start, end])
    };
    for (name, [rows, cols]) in matrices {
        let stride = cols.next_multiple_of(MULTIPLE);
        entries.insert(
            name.clone(),
            json!({ "dtype": "F8_E4M3", "shape": [rows, stride], "data_offsets": place(rows * stride) }),
        );
        entries.insert(
            scales_name(name),
            json!({ "dtype": "F32", "shape": [rows], "data_offsets": place(rows * size_of::<f32>()) }),
        );
    }
    let mut text = serde_json::to_vec(&entries).map_err(failed)?;
    // The tensors begin at a multiple of 16, as their rows do: the length takes 8 bytes.
    text.resize((text.len() + 8).next_multiple_of(MULTIPLE) - 8, b' ');
    Ok([(text.len() as u64).to_le_bytes().as_slice(), &text].concat())
}

/// The values, in rows that are padded with zeros, and a scale for each row. As on the GPU, values of other types are
/// rounded to bf16 first.
fn quantise(view: &TensorView) -> (Vec<u8>, Vec<f32>) {
    let (rows, stride) = (view.rows(), view.cols().next_multiple_of(MULTIPLE));
    let (mut values, mut scales) = (vec![0; rows * stride], vec![0.0; rows]);
    let tasks = values.par_chunks_mut(TASK_ROWS * stride).zip(scales.par_chunks_mut(TASK_ROWS)).enumerate();
    tasks.for_each(|(task, (values, scales))| {
        let first = task * TASK_ROWS;
        let mut from = view.row_range(first..first + scales.len()).to_f32();
        if view.format() != Format::Bf16 {
            from.iter_mut().for_each(|value| *value = bf16::from_f32(*value).to_f32());
        }
        for ((row, out), scale) in from.chunks(view.cols()).zip(values.chunks_mut(stride)).zip(scales) {
            *scale = quantise_row(row, out);
        }
    });
    (values, scales)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use safetensors::Dtype as FileDtype;
    use safetensors::tensor::TensorView as FileTensor;

    use super::*;
    use crate::files::ModelFiles;

    const DOUBLE: &str = "transformer_blocks.0.attn.to_q.weight";
    const SINGLE: &str = "single_transformer_blocks.11.attn.to_out.weight";
    const VECTOR: &str = "transformer_blocks.0.attn.norm_q.weight";
    const OUTSIDE: &str = "x_embedder.weight";

    /// A folder with the weights of a transformer.
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

        fn kept(&self) -> PathBuf {
            self.path().join(FILE)
        }

        /// Weights times `factor`, and further matrices in the blocks.
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

        fn attach(&self) -> (TensorFiles, Result<Fp8Cache>) {
            let mut files = crate::transformer::open(&ModelFiles::Folder(self.path().to_path_buf())).unwrap();
            let attached = attach(self.path(), &mut files, &mut |_, _| {});
            (files, attached)
        }

        #[track_caller]
        fn is_found(&self) {
            assert_eq!(self.attach().1.unwrap(), Fp8Cache::Found);
        }

        /// The file is made anew, and says so in these words.
        #[track_caller]
        fn is_made_anew(&self, words: &str) {
            let made = self.attach().1.unwrap();
            assert!(
                matches!(&made, Fp8Cache::Made(path, Some(why)) if *path == self.kept() && why.contains(words)),
                "{made:?}"
            );
            assert!(made.note().unwrap().contains(words));
            self.is_found();
        }

        fn change_header(&self, change: impl FnOnce(&mut Map<String, Value>)) {
            let bytes = fs::read(self.kept()).unwrap();
            let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let mut header = serde_json::from_slice(&bytes[8..end]).unwrap();
            change(&mut header);
            let header = serde_json::to_vec(&header).unwrap();
            fs::write(self.kept(), [(header.len() as u64).to_le_bytes().as_slice(), &header, &bytes[end..]].concat())
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
    fn every_matrix_of_a_block_is_kept_as_e4m3() {
        let model = Model::new();
        let (made, cache) = model.attach();
        assert_eq!(cache.unwrap(), Fp8Cache::Made(model.kept(), None));
        let (found, cache) = model.attach();
        assert_eq!(cache.unwrap(), Fp8Cache::Found);
        for files in [&made, &found] {
            for (name, [rows, cols]) in [(DOUBLE, [5, 20]), (SINGLE, [40, 32])] {
                let view = files.get(name, &[rows, cols]).unwrap();
                let quantised = view.quantised().expect("it is in a block");
                assert_eq!((quantised.format(), quantised.shape()), (Format::E4m3Rows, &[rows, cols][..]));
                for row in 0..rows {
                    let from: Vec<f32> = view
                        .row_range(row..row + 1)
                        .to_f32()
                        .into_iter()
                        .map(|value| bf16::from_f32(value).to_f32())
                        .collect();
                    let mut expected = vec![0; 32];
                    let scale = quantise_row(&from, &mut expected);
                    let part = view.row_range(row..row + 1);
                    let part = part.quantised().expect("rows of it have it too");
                    assert_eq!(
                        (part.bytes(), part.scales().unwrap().bytes()),
                        (&expected[..], &scale.to_le_bytes()[..]),
                        "row {row} of {name}"
                    );
                }
            }
            assert!(files.get(VECTOR, &[16]).unwrap().quantised().is_none());
            assert!(files.get(OUTSIDE, &[8, 8]).unwrap().quantised().is_none());
        }
        let names: Vec<_> = fs::read_dir(model.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "no partial file is left: {names:?}");
    }

    #[test]
    fn a_file_that_fits_is_left_alone() {
        let model = Model::new();
        model.attach().1.unwrap();
        let before = (fs::read(model.kept()).unwrap(), fs::metadata(model.kept()).unwrap().modified().unwrap());
        model.is_found();
        assert!(before == (fs::read(model.kept()).unwrap(), fs::metadata(model.kept()).unwrap().modified().unwrap()));
    }

    #[test]
    fn making_it_is_reported_to_the_end() {
        let model = Model::new();
        let mut files = crate::transformer::open(&ModelFiles::Folder(model.path().to_path_buf())).unwrap();
        let mut reports = Vec::new();
        attach(model.path(), &mut files, &mut |done, total| reports.push((done, total))).unwrap();
        let total = 5 * 20 + 40 * 32;
        assert_eq!(reports, [(0, total), (40 * 32, total), (total, total)]);
    }

    #[test]
    fn other_weights_make_it_anew() {
        let model = Model::new();
        model.attach().1.unwrap();
        let time = fs::metadata(model.source()).unwrap().modified().unwrap();
        let set_time =
            |time| fs::File::options().append(true).open(model.source()).unwrap().set_modified(time).unwrap();

        set_time(time + Duration::from_millis(1));
        model.is_made_anew("diffusion_pytorch_model.safetensors");
        set_time(UNIX_EPOCH - Duration::from_secs(1));
        model.is_made_anew("diffusion_pytorch_model.safetensors");
        set_time(time);
        model.is_made_anew("diffusion_pytorch_model.safetensors");

        model.write(-1.0, &[]);
        set_time(time);
        model.is_made_anew("diffusion_pytorch_model.safetensors");
        let value = |files: &TensorFiles| files.get(DOUBLE, &[5, 20]).unwrap().quantised().unwrap().bytes()[0];
        assert_eq!(value(&model.attach().0) & 0x80, 0, "the values of the new weights, of which the first is 50 / 3");

        model.write(-1.0, &["transformer_blocks.1.more.weight"]);
        set_time(time);
        model.is_made_anew("diffusion_pytorch_model.safetensors");
        assert!(model.attach().0.get("transformer_blocks.1.more.weight", &[3, 16]).unwrap().quantised().is_some());
    }

    #[test]
    fn a_file_of_another_kind_is_made_anew() {
        let model = Model::new();
        model.attach().1.unwrap();
        for format in [FORMAT - 1, FORMAT + 1] {
            model.change_origin(|origin| origin["format"] = json!(format));
            model.is_made_anew(&format!("its format is {format}"));
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
        for said in ["", "{}", "[1]", "no JSON", &no_sources, &more] {
            model.change_header(|header| header["__metadata__"][ORIGIN_KEY] = json!(said));
            model.is_made_anew("does not say");
        }
        model.change_header(|header| drop(header.remove("__metadata__")));
        model.is_made_anew("does not say");
    }

    #[test]
    fn a_damaged_file_is_an_error_that_says_what_to_do() {
        let model = Model::new();
        model.attach().1.unwrap();
        let good = fs::read(model.kept()).unwrap();
        let refused = |what: &str, word: &str| {
            let error = model.attach().1.unwrap_err().to_string();
            assert!(
                error.contains(FILE) && error.contains("hint: delete the file") && error.contains(word),
                "{what}: {error}"
            );
            fs::write(model.kept(), &good).unwrap();
            model.is_found();
        };
        for keep in [0, 4, 8, 100, good.len() / 2, good.len() - 1] {
            fs::write(model.kept(), &good[..keep]).unwrap();
            refused(&format!("cut off at {keep}"), "");
        }
        for length in [u64::MAX, i64::MAX as u64, 1 << 40] {
            fs::write(model.kept(), [length.to_le_bytes().as_slice(), &good[8..]].concat()).unwrap();
            refused(&format!("a header of {length} bytes"), "not a whole safetensors file");
        }
        let scales = scales_name(SINGLE);
        model.change_header(|header| {
            let entry = header.remove(DOUBLE).unwrap();
            header.insert("transformer_blocks.0.other".to_string(), entry);
        });
        refused("a matrix of another name", &format!("`{DOUBLE}` is missing"));
        model.change_header(|header| header[SINGLE]["dtype"] = json!("I8"));
        refused("values of another type", "is of dtype I8");
        model.change_header(|header| header[&scales]["dtype"] = json!("I32"));
        refused("scales of another type", "is of dtype I32");
        model.change_header(|header| header[SINGLE]["shape"] = json!([32, 40]));
        refused("another shape", "is [32, 40], expected [40, 32]");
        model.change_header(|header| header[SINGLE]["data_offsets"] = json!([0, 1u64 << 40]));
        refused("an offset behind the end", "not a whole safetensors file");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_said_and_costs_nothing() {
        let model = Model::new();
        fs::create_dir_all(model.kept().join("in the way")).unwrap();
        let (files, cache) = model.attach();
        let cache = cache.unwrap();
        assert!(matches!(&cache, Fp8Cache::NotMade(path, _) if *path == model.kept()), "{cache:?}");
        assert!(cache.note().unwrap().contains("cannot be written"));
        assert!(files.get(DOUBLE, &[5, 20]).unwrap().quantised().is_none());
        assert_eq!(fs::read_dir(model.path()).unwrap().count(), 2, "no partial file is left");
    }
}
