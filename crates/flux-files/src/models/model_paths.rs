//! Locating the files of a model by the paths that the user named.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::catalog::fetch::fetch_a_model;
use crate::catalog::own_models::{Architecture, OWN_MODELS, OwnModel, PublishedSize, is_class};
use crate::catalog::recognise::FileKind;
use crate::catalog::role::Role;
use crate::catalog::variant::Variant;
use crate::containers::container::Container;
use crate::models::component::{CONFIG, Component, open_weights};
use crate::models::folder::Folder;
use crate::models::model_files::{INDEX, ModelFiles, TOKENIZER, TokenizerFile, has_index, index_in};
use crate::models::named_paths::ModelPaths;
use crate::models::search::{
    Candidate, Candidates, around, candidates, expect_role, is_comfy, is_folder, needs, only, places,
};
use crate::{io::name_of, io::near, io::regular, models::hub};
use flux_base::error::{Error, Field, Result};

/// The key of the tokens in a GGUF file.
const GGUF_TOKENS: &str = "tokenizer.ggml.tokens";

impl ModelFiles {
    /// Locates the model at `path`: a folder in the diffusers layout, the transformer folder of such a folder, a folder
    /// in ComfyUI's layout, or a transformer file with the other parts around it.
    ///
    /// Errors if `path` is none of these, or a part is missing or ambiguous.
    pub fn open(path: &Path) -> Result<Self> {
        let paths = ModelPaths { model: Some(path.to_path_buf()), ..ModelPaths::default() };
        paths.open(|| Err(Error::new("a model was named")))
    }
}

impl ModelPaths {
    /// Locates the files of the model; calls `default` if no model is named.
    ///
    /// Errors if a path does not hold the part that it is named as, or a part is missing or ambiguous.
    pub fn open(&self, default: impl FnOnce() -> Result<ModelFiles>) -> Result<ModelFiles> {
        let mut model = match &self.model {
            Some(path) => model_at(path)?,
            None => default()?,
        };
        if let Some(path) = &self.text_encoder {
            let found = self.text_encoder(path, &model).map_err(|e| e.for_field(Field::TextEncoder))?;
            (model.text_encoder, model.tokenizer) = found;
        }
        if let Some(path) = &self.vae {
            model.vae = part(path, Role::Vae, &model).map_err(|e| e.for_field(Field::Vae))?;
        }
        if let Some(path) = &self.tokenizer {
            model.tokenizer = tokenizer(path).map_err(|e| e.for_field(Field::Tokenizer))?;
        }
        [&model.transformer, &model.text_encoder, &model.vae].into_iter().try_for_each(Component::check_present)?;
        self.note_choices(&mut model);
        self.choose_variant(&mut model)?;
        model.paths = self.clone();
        Ok(model)
    }

    /// Returns the text encoder at `path` and its tokenizer.
    fn text_encoder(&self, path: &Path, model: &ModelFiles) -> Result<(Component, TokenizerFile)> {
        let component = part(path, Role::TextEncoder, model)?;
        let own = match component.single_file() {
            Some(file) => tokenizer_inside(file),
            None => component.path().parent().and_then(ModelFiles::tokenizer_in),
        };
        let tokenizer = own.unwrap_or_else(|| match &model.tokenizer {
            // The tokenizer in the model's own folder, if there is one.
            TokenizerFile::Json(folder, name) if folder.exists(name) => model.tokenizer.clone(),
            _ => TokenizerFile::Carried,
        });
        Ok((component, tokenizer))
    }

    /// Adds notes about the files that were found rather than named, and about anything unusual in the files.
    fn note_choices(&self, model: &mut ModelFiles) {
        let parts = [
            (&model.transformer, self.model.as_deref()),
            (&model.text_encoder, self.text_encoder.as_deref()),
            (&model.vae, self.vae.as_deref()),
        ];
        // A part in the same file as the named model counts as named.
        let is_named = |file: &Path| parts.iter().any(|(_, named)| *named == Some(file));
        let found = parts.iter().filter_map(|(component, _)| {
            let file = component.single_file().filter(|file| !is_named(file))?;
            Some(format!("{} `{}`", component.role().title(), file.display()))
        });
        let found: Vec<_> = found.collect();
        if !found.is_empty() {
            model.notes.push(format!("found the {}", found.join(", the ")));
        }
        let unknown = [&model.transformer, &model.text_encoder, &model.vae].map(Component::unknown_metadata);
        model.notes.extend(unknown.into_iter().flatten());
        for note in parts.iter().flat_map(|(component, _)| component.notes()) {
            // All parts in one file have the same note.
            if !model.notes.contains(&note) {
                model.notes.push(note);
            }
        }
        let name = model.text_encoder.single_file().map(name_of).unwrap_or_default().to_lowercase();
        let own = own_model(&model.transformer);
        let is_other = own.other_text_encoders.iter().any(|word| name.contains(word));
        // A file may hold only the text half of a vision-language encoder.
        let sees = || model.text_encoder.text_encoder_of().text_encoder_sees;
        if is_other || (model.text_encoder.single_file().is_some() && own.text_encoder_sees && !sees()) {
            model.notes.push(format!(
                "judging by its name, the text encoder `{name}` is not the {} that klein models were trained with: \
                 images will differ",
                own.text_encoder
            ));
        }
    }

    /// Chooses the variant of the model if neither its file nor an index states the variant, and notes the choice.
    fn choose_variant(&self, model: &mut ModelFiles) -> Result<()> {
        if let Some(variant) = self.variant {
            model.variant = Some(variant);
            return Ok(());
        }
        if self.model.is_none() || model.folder().is_some() || own_model(&model.transformer).weights_tell_variant {
            return Ok(());
        }
        let path = model.transformer.path();
        let by_name = Variant::from_name(&path);
        if let Some(said) = model.transformer.said_of_the_model()?.map(|values| values.variant()).transpose()?.flatten()
        {
            if by_name.is_some_and(|by_name| by_name != said) {
                model.notes.push(format!(
                    "runs as a {said} model because the file declares it, despite its name; `{}` overrides it",
                    Field::Variant
                ));
            }
            return Ok(());
        }
        if by_name.is_none() && model.index.is_some() {
            return Ok(());
        }
        let variant = by_name.unwrap_or(Variant::Distilled);
        model.variant = Some(variant);
        let why = if by_name.is_some() { "contains it" } else { "does not contain a variant" };
        model.notes.push(format!(
            "runs as a {variant} model because the file's name {why}; `{}` overrides it",
            Field::Variant
        ));
        Ok(())
    }
}

/// Returns the model at a path; parts may be missing.
fn model_at(path: &Path) -> Result<ModelFiles> {
    let hint = || format!("{}, or leave out `{}` for the default model", fetch_a_model(), Field::Model);
    let path = &*hub::resolve(path, is_model)?;
    match path.metadata() {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(regular::closed_folder(&error, path)),
        Err(_) => Err(Error::new(format!("no such model folder or file: `{}`", path.display()))
            .hint(near::hint_for(path, hint()))),
        Ok(found) if !found.is_dir() => model_from_transformer_file(path),
        Ok(_) if has_index(path) => Ok(ModelFiles::from_folder(Folder::Disk(path.to_path_buf()), folder_name(path))),
        Ok(_) if is_transformer_folder(path) => Ok(model_from_transformer_folder(path)),
        Ok(_) => {
            let nested = path.join("models");
            let root = if !is_comfy(path) && is_comfy(&nested) { nested } else { path.to_path_buf() };
            let found = candidates(std::slice::from_ref(&root), Role::Transformer);
            let missing = || {
                let what = if is_comfy(&root) {
                    let names = OWN_MODELS.map(|model| model.name).join(" or ");
                    format!("there is no {names} transformer file in `diffusion_models`, `unet` or next to them")
                } else {
                    format!("not a model folder: `{INDEX}` is missing, and there is no transformer file")
                };
                Error::new(what).at_path(path).hint(hint())
            };
            let file = only(found, Role::Transformer, missing).map_err(|e| e.at_path(path))?;
            Ok(around_transformer(&file, vec![root]))
        }
    }
}

/// Returns the supported model of the transformer's architecture; FLUX.2 if its tensors and config do not tell.
fn own_model(transformer: &Component) -> &'static OwnModel {
    transformer.architecture().unwrap_or(Architecture::Flux2).model()
}

/// Returns `true` if a folder holds a supported model, by its index or its tensor names.
fn is_model(path: &Path) -> bool {
    let folder = Folder::Disk(path.to_path_buf());
    match folder.class(index_in(&folder)) {
        Ok(class) => class.is_some_and(|class| OWN_MODELS.iter().any(|model| class.starts_with(model.class_front))),
        Err(_) => !candidates(&[path.to_path_buf()], Role::Transformer).files.is_empty(),
    }
}

/// Returns a short name of a folder.
fn folder_name(path: &Path) -> String {
    let full = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    full.file_name().unwrap_or(full.as_os_str()).to_string_lossy().into_owned()
}

/// Returns `true` if a folder is the transformer folder of a model in the diffusers layout.
pub(crate) fn is_transformer_folder(path: &Path) -> bool {
    let class = Folder::Disk(path.to_path_buf()).class(CONFIG).ok().flatten();
    class.is_some_and(|class| is_class(Role::Transformer, &class))
}

/// Returns the model whose transformer folder is `path`; the other parts are next to it.
fn model_from_transformer_folder(path: &Path) -> ModelFiles {
    let component = Component::folder(Role::Transformer, Folder::Disk(path.to_path_buf()));
    let (model, name) = match model_above(path) {
        Some(parent) => {
            let name = format!("{}/{}", folder_name(&parent), folder_name(path));
            (ModelFiles::from_folder(Folder::Disk(parent), String::new()), name)
        }
        None => (without_parts(&component, &around(path)), folder_name(path)),
    };
    ModelFiles { name, transformer: component, ..model }
}

/// Returns the model whose transformer is a file.
///
/// Errors if the file is something else.
fn model_from_transformer_file(path: &Path) -> Result<ModelFiles> {
    let kind = expect_role(path, Role::Transformer)?;
    // The single file is published in the same repository as the folders.
    let Some(parent) = model_above(path) else {
        return Ok(around_transformer(path, around(path)));
    };
    let mut model = ModelFiles::from_folder(Folder::Disk(parent), file_name(path));
    model.transformer = Component::file(Role::Transformer, path.to_path_buf());
    if let Some(text_encoder) = inside(path, &kind, Role::TextEncoder) {
        model.tokenizer = tokenizer_inside(path).unwrap_or(TokenizerFile::Carried);
        model.text_encoder = text_encoder;
    }
    model.vae = inside(path, &kind, Role::Vae).unwrap_or(model.vae);
    Ok(model)
}

/// Returns the folder in the diffusers layout that contains a file or folder.
fn model_above(path: &Path) -> Option<PathBuf> {
    let above = places(path).into_iter().filter_map(|place| place.parent().map(Path::to_path_buf));
    above.into_iter().find(|parent| has_index(parent))
}

/// Returns the part `role` if the transformer's file, of kind `kind`, contains it.
fn inside(path: &Path, kind: &FileKind, role: Role) -> Option<Component> {
    kind.part(role).map(|_| Component::file(role, path.to_path_buf()))
}

/// Returns the name of a file without its extension.
fn file_name(path: &Path) -> String {
    path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// Returns the model whose transformer is the file `path`; searches `roots` for the other parts.
fn around_transformer(path: &Path, roots: Vec<PathBuf>) -> ModelFiles {
    let component = Component::file(Role::Transformer, path.to_path_buf());
    let mut model = without_parts(&component, &roots);
    model.name = file_name(path);
    model.transformer = component;
    model
}

/// Returns a model with the parts in `roots` that fit a transformer. A missing part holds the error that reports it.
fn without_parts(transformer: &Component, roots: &[PathBuf]) -> ModelFiles {
    let kind = transformer.single_file().and_then(|file| expect_role(file, Role::Transformer).ok()).unwrap_or_default();
    let inside = |role| inside(transformer.single_file()?, &kind, role);
    let find = |role: Role| {
        inside(role).unwrap_or_else(|| match find_fitting(transformer, roots, role) {
            Ok(path) => Component::file(role, path),
            Err(error) => Component::missing(role, error),
        })
    };
    let text_encoder = find(Role::TextEncoder);
    let tokenizer = text_encoder.single_file().and_then(tokenizer_inside).unwrap_or(TokenizerFile::Carried);
    ModelFiles {
        name: String::new(),
        index: None,
        text_encoder,
        transformer: transformer.clone(),
        vae: find(Role::Vae),
        tokenizer,
        variant: None,
        notes: Vec::new(),
        paths: ModelPaths::default(),
    }
}

/// Returns the only file in `roots` that is the component `role` and fits the transformer.
fn find_fitting(transformer: &Component, roots: &[PathBuf], role: Role) -> Result<PathBuf> {
    let [features, channels] = needs(transformer)?;
    let own = own_model(transformer);
    let fits = |Candidate { path, width, .. }: &Candidate| match role {
        Role::TextEncoder => {
            let has_features = width.checked_mul(own.out_layers.len()) == Some(features);
            let is_of = |path: &PathBuf| Component::file(role, path.clone()).text_encoder_of();
            has_features && is_of(path).text_encoder_sees == own.text_encoder_sees
        }
        Role::Transformer => true,
        Role::Vae => *width == channels,
    };
    let Candidates { files, damaged } = candidates(roots, role);
    let (files, others): (Vec<_>, Vec<_>) = files.into_iter().partition(fits);
    only(Candidates { files, damaged }, role, || missing(transformer, role, [features, channels], &others))
        .map_err(|e| e.at(transformer.path().display().to_string()))
}

fn missing(transformer: &Component, role: Role, [features, channels]: [usize; 2], others: &[Candidate]) -> Error {
    let OwnModel { sizes, text_encoder, out_layers, .. } = own_model(transformer);
    let size = sizes.iter().find(|size| size.features == features);
    let wanted = match (role, size) {
        (Role::Vae, _) => format!("the FLUX.2 VAE (`flux2-vae.safetensors`) with {channels} packed channels"),
        (_, Some(PublishedSize { text_encoder: (name, file), .. })) => format!("{name} (`{file}`)"),
        (_, None) => format!("a {text_encoder} with {} features", features / out_layers.len()),
    };
    let title = role.title();
    let there = match others {
        [] => String::new(),
        [other, ..] => format!("; `{}`, with {}, does not fit", other.path.display(), other.width),
    };
    let folder = if role == Role::Vae { "vae" } else { "text_encoders" };
    Error::new(format!("this transformer comes without a {title}, and there is no matching one next to it{there}"))
        .at(transformer.path().display().to_string())
        .hint(format!(
            "it needs {wanted}: pass the file, or the folder of a complete model, with `{:#}`, or put it into \
             `{folder}` next to the folder of the transformer",
            role.field()
        ))
}

/// Returns the component `role` at the path named for it: a file, its folder, or a whole model.
fn part(path: &Path, role: Role, model: &ModelFiles) -> Result<Component> {
    let path = &*hub::resolve(path, |_| false)?;
    if !is_folder(path, || format!("name a {} file, or a model folder", role.title()))? {
        expect_role(path, role)?;
        return Ok(Component::file(role, path.to_path_buf()));
    }
    let folder = Folder::Disk(path.to_path_buf());
    let inner = folder.sub(role.folder());
    if inner.exists(CONFIG) {
        return Ok(Component::folder(role, inner));
    }
    if folder.exists(CONFIG) {
        return Ok(Component::folder(role, folder));
    }
    find_fitting(&model.transformer, &[path.to_path_buf()], role).map(|found| Component::file(role, found))
}

/// Returns the tokenizer in a text encoder's file if it is a GGUF file with a tokenizer.
pub(crate) fn tokenizer_inside(path: &Path) -> Option<TokenizerFile> {
    match open_weights(path).ok()? {
        Container::Gguf(file) if file.has(GGUF_TOKENS) => Some(TokenizerFile::Gguf(path.to_path_buf())),
        Container::Gguf(_) | Container::Safetensors(_) | Container::Pickle(_) => None,
    }
}

/// Returns the tokenizer at the path named for it.
pub(crate) fn tokenizer(path: &Path) -> Result<TokenizerFile> {
    let path = &*hub::resolve(path, |_| false)?;
    if let Some(inside) = path.is_file().then(|| tokenizer_inside(path)).flatten() {
        return Ok(inside);
    }
    if path.is_dir() {
        let folder = Folder::Disk(path.to_path_buf());
        if folder.exists(TOKENIZER) {
            return Ok(TokenizerFile::Json(folder, TOKENIZER.to_string()));
        }
        return ModelFiles::tokenizer_in(path).ok_or_else(|| {
            Error::new(format!("there is no `{TOKENIZER}` in `{}`", path.display()))
                .hint("name a `tokenizer.json`, or the folder that contains it")
        });
    }
    let name = name_of(path);
    let folder = Folder::Disk(path.parent().map(Path::to_path_buf).unwrap_or_default());
    if !folder.exists(&name) {
        return Err(near::no_such(path, "name a `tokenizer.json`, or the folder that contains it"));
    }
    Ok(TokenizerFile::Json(folder, name))
}
