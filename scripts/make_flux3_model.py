#!/usr/bin/env python3
"""Write a random FLUX 3 Image Klein model folder in the layout, names, shapes and dtypes of the real one; optionally run the
reference on it.

    python3 make_flux3_model.py --out DIR [--size tiny|full] [--kind distilled|base] [--seed 0] [--tokenizer DIR] [--shards 2]
    python3 make_flux3_model.py --out DIR --reference CASE [--prompt ...] [--height 64 --width 64] [--steps 4] [--noise-seed 0]
                          [--image a.png ...] [--synthetic-image WxH ...] [--negative ...] [--guidance 3.5] [--dtype float32] [--compact]

Writing needs torch and safetensors (uses a GPU when there is one). --reference needs diffusers >= 0.42 and transformers >= 5; if DIR
exists it is used as it is, otherwise it is written first. CASE.png, CASE.safetensors and CASE.json are the results; --compact keeps one
pad row of the text features (all pad rows are equal) and drops the decoded floats.
tiny: about 2 MB, byte-level tokenizer of its own unless --tokenizer is given. full: 20 GB, --tokenizer DIR (tokenizer.json,
tokenizer_config.json of Qwen3) is necessary. Base and distilled of one seed share all weights but the target-time embedder.
"""
import argparse, json, math, os, shutil
import torch
from safetensors.torch import save_file

SIZES = {  # n1 blocks per kind, n2 joint blocks; te: the text tower; vt: the vision tower (never used for pictures)
    "full": dict(n1=5, n2=28, heads=24, hd=128, te=dict(hidden=2560, inter=9728, layers=36, heads=32, kv=8, hd=128), vt=dict(depth=24, hidden=1024, inter=4096, heads=16, pos=2304, deep=[5, 11, 17]),
                 vae=(128, 256, 512, 512), res=2, groups=32, vocab=151936, mrope=[24, 20, 20], px=1024),
    "tiny": dict(n1=2, n2=3, heads=2, hd=32, te=dict(hidden=32, inter=64, layers=9, heads=4, kv=2, hd=16), vt=dict(depth=1, hidden=16, inter=32, heads=2, pos=16, deep=[0]),
                 vae=(16, 16, 16, 32), res=1, groups=8, vocab=264, mrope=[4, 2, 2], px=64),
}
OUT_LAYERS = 8  # hidden states i * layers / 9, i = 1..8: 4, 8, .. 32 of 36
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEMPLATE = ("{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}{%- if m.content is string %}{{- m.content }}{%- else %}{%- for c in m.content %}{%- if 'text' in c %}{{- c.text }}{%- endif %}{%- endfor %}{%- endif %}"
            "{{- '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}")


def dump(obj, path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f: json.dump(obj, f, indent=2, ensure_ascii=False)


def write_model(a):
    c = dict(SIZES[a.size]); c["vocab"] = 151936 if a.tokenizer else c["vocab"]; t, vt, D = c["te"], c["vt"], c["heads"] * c["hd"]
    dev = "cuda" if torch.cuda.is_available() and a.size == "full" else "cpu"; gen = torch.Generator(dev).manual_seed(a.seed)

    def rand(*shape, fan=None, gain=1.0, dtype=torch.bfloat16):
        fan = fan or (math.prod(shape[1:]) if len(shape) > 1 else None)
        x = torch.randn(*shape, device=dev, generator=gen)
        return (x * (gain / fan ** 0.5) if fan else 1 + 0.1 * x).to(dtype).cpu().contiguous()

    def write(path, tensors, shards=1, stem="diffusion_pytorch_model"):
        os.makedirs(path, exist_ok=True)
        if shards == 1: return save_file(tensors, f"{path}/{stem}.safetensors", metadata={"format": "pt"})
        keys = list(tensors); per = -(-len(keys) // shards); wm = {}
        for i in range(shards):
            f = f"{stem}-{i + 1:05d}-of-{shards:05d}.safetensors"; part = {k: tensors[k] for k in keys[i * per:(i + 1) * per]}
            save_file(part, f"{path}/{f}", metadata={"format": "pt"}); wm.update({k: f for k in part})
        dump({"metadata": {"total_size": sum(v.numel() * v.element_size() for v in tensors.values())}, "weight_map": wm}, f"{path}/{stem}.safetensors.index.json")

    # text encoder (Qwen3-VL: language tower used, vision tower only there to be skipped; lm_head is tied)
    w = {"model.language_model.embed_tokens.weight": rand(c["vocab"], t["hidden"], fan=1)}
    for i in range(t["layers"]):
        p, q, kv = f"model.language_model.layers.{i}.", t["heads"] * t["hd"], t["kv"] * t["hd"]
        w |= {p + "input_layernorm.weight": rand(t["hidden"]), p + "post_attention_layernorm.weight": rand(t["hidden"]), p + "self_attn.q_norm.weight": rand(t["hd"]), p + "self_attn.k_norm.weight": rand(t["hd"]),
              p + "self_attn.q_proj.weight": rand(q, t["hidden"]), p + "self_attn.k_proj.weight": rand(kv, t["hidden"]), p + "self_attn.v_proj.weight": rand(kv, t["hidden"]), p + "self_attn.o_proj.weight": rand(t["hidden"], q),
              p + "mlp.gate_proj.weight": rand(t["inter"], t["hidden"]), p + "mlp.up_proj.weight": rand(t["inter"], t["hidden"]), p + "mlp.down_proj.weight": rand(t["hidden"], t["inter"])}
    w["model.language_model.norm.weight"] = rand(t["hidden"])
    V, I, M = vt["hidden"], vt["inter"], 4 * vt["hidden"]
    def lin(p, o, i): w[p + ".weight"], w[p + ".bias"] = rand(o, i), rand(o, fan=100)
    def norm(p, n): w[p + ".weight"], w[p + ".bias"] = rand(n), rand(n, fan=100)
    w["model.visual.patch_embed.proj.weight"], w["model.visual.patch_embed.proj.bias"] = rand(V, 3, 2, 16, 16), rand(V, fan=100)
    w["model.visual.pos_embed.weight"] = rand(vt["pos"], V, fan=1)
    for i in range(vt["depth"]):
        p = f"model.visual.blocks.{i}."; norm(p + "norm1", V); norm(p + "norm2", V)
        lin(p + "attn.qkv", 3 * V, V); lin(p + "attn.proj", V, V); lin(p + "mlp.linear_fc1", I, V); lin(p + "mlp.linear_fc2", V, I)
    for p, n in [("model.visual.merger", V)] + [(f"model.visual.deepstack_merger_list.{i}", M) for i in range(len(vt["deep"]))]:
        norm(p + ".norm", n); lin(p + ".linear_fc1", M, M); lin(p + ".linear_fc2", t["hidden"], M)
    write(a.out + "/text_encoder", w, a.shards if a.size == "full" else 1, "model"); n_te = sum(v.numel() for v in w.values())
    rope = {"rope_type": "default", "rope_theta": 5000000.0, "mrope_interleaved": True, "mrope_section": c["mrope"]}
    special = {k: i for k, i in zip(SPECIAL, range(256, 256 + len(SPECIAL)))} if not a.tokenizer else {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645, "<|vision_start|>": 151652, "<|vision_end|>": 151653, "<|image_pad|>": 151655, "<|video_pad|>": 151656}
    dump(dict(architectures=["Qwen3VLForConditionalGeneration"], model_type="qwen3_vl", dtype="bfloat16", tie_word_embeddings=True, image_token_id=special["<|image_pad|>"], video_token_id=special["<|video_pad|>"], vision_start_token_id=special["<|vision_start|>"],
              vision_end_token_id=special["<|vision_end|>"], text_config=dict(model_type="qwen3_vl_text", dtype="bfloat16", hidden_size=t["hidden"], intermediate_size=t["inter"], num_hidden_layers=t["layers"], num_attention_heads=t["heads"], num_key_value_heads=t["kv"],
              head_dim=t["hd"], rms_norm_eps=1e-6, rope_parameters=rope, vocab_size=c["vocab"], max_position_embeddings=262144, attention_bias=False, attention_dropout=0.0, hidden_act="silu", tie_word_embeddings=True, bos_token_id=special["<|endoftext|>"], eos_token_id=special["<|im_end|>"]),
              vision_config=dict(model_type="qwen3_vl", depth=vt["depth"], hidden_size=V, intermediate_size=I, num_heads=vt["heads"], out_hidden_size=t["hidden"], deepstack_visual_indexes=vt["deep"], num_position_embeddings=vt["pos"], patch_size=16, spatial_merge_size=2,
              temporal_patch_size=2, in_channels=3, hidden_act="gelu_pytorch_tanh")), a.out + "/text_encoder/config.json")

    # vae: the FLUX.2 one
    w = {}
    def conv(p, o, i, k=3): w[p + ".weight"], w[p + ".bias"] = rand(o, i, k, k), rand(o, fan=100)
    def res(p, i, o):
        norm(p + ".norm1", i); conv(p + ".conv1", o, i); norm(p + ".norm2", o); conv(p + ".conv2", o, o)
        if i != o: conv(p + ".conv_shortcut", o, i, 1)
    def mid(p, n):
        res(p + ".resnets.0", n, n); norm(p + ".attentions.0.group_norm", n)
        for k in ("to_q", "to_k", "to_v", "to_out.0"): lin(f"{p}.attentions.0.{k}", n, n)
        res(p + ".resnets.1", n, n)
    ch = c["vae"]; top = ch[-1]; conv("encoder.conv_in", ch[0], 3); i = ch[0]
    for b, o in enumerate(ch):
        for r in range(c["res"]): res(f"encoder.down_blocks.{b}.resnets.{r}", i, o); i = o
        if b < 3: conv(f"encoder.down_blocks.{b}.downsamplers.0.conv", o, o)
    mid("encoder.mid_block", top); norm("encoder.conv_norm_out", top); conv("encoder.conv_out", 64, top); conv("quant_conv", 64, 64, 1); conv("post_quant_conv", 32, 32, 1)
    conv("decoder.conv_in", top, 32); mid("decoder.mid_block", top); i = top
    for b, o in enumerate(reversed(ch)):
        for r in range(c["res"] + 1): res(f"decoder.up_blocks.{b}.resnets.{r}", i, o); i = o
        if b < 3: conv(f"decoder.up_blocks.{b}.upsamplers.0.conv", o, o)
    norm("decoder.conv_norm_out", ch[0]); conv("decoder.conv_out", 3, ch[0])
    w["decoder.conv_out.weight"] *= 0.3  # keeps most pixels off the clamp
    w["bn.running_mean"] = (0.3 * torch.randn(128, device=dev, generator=gen)).to(torch.bfloat16).cpu(); w["bn.running_var"] = (0.5 + 1.5 * torch.rand(128, device=dev, generator=gen)).to(torch.bfloat16).cpu(); w["bn.num_batches_tracked"] = torch.tensor(1000)
    write(a.out + "/vae", w); n_vae = sum(v.numel() for v in w.values())
    dump(dict(_class_name="AutoencoderKLFlux2", in_channels=3, out_channels=3, latent_channels=32, block_out_channels=list(ch), layers_per_block=c["res"], norm_num_groups=c["groups"], act_fn="silu", sample_size=c["px"], force_upcast=True, use_quant_conv=True, use_post_quant_conv=True,
              mid_block_add_attention=True, batch_norm_eps=1e-4, batch_norm_momentum=0.1, patch_size=[2, 2], down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4), a.out + "/vae/config.json")

    # transformer
    J, F = OUT_LAYERS * t["hidden"], 3 * D
    w = {"timestep_embedder.linear_1.weight": rand(D, 256), "timestep_embedder.linear_2.weight": rand(D, D)}
    for s in ("early", "single"):
        for m in ("image", "image_cond", "txt"): w[f"{s}_stream_modulations.{m}.linear.weight"] = rand(3 * D, D, gain=1.0)
    w |= {"x_embedders.image.weight": rand(D, 128), "x_embedders.image_cond.weight": rand(D, 128), "context_embedder.weight": rand(D, J)}
    for p in [f"mode_blocks.{m}.{i}." for m in ("image", "image_cond") for i in range(c["n1"])] + [f"txt_mode_blocks.{i}." for i in range(c["n1"])] + [f"single_transformer_blocks.{i}." for i in range(c["n2"])]:
        for n in ("to_q", "to_k", "to_v", "to_out.0"): w[f"{p}attn.{n}.weight"] = rand(D, D)
        w[p + "attn.norm_q.weight"], w[p + "attn.norm_k.weight"] = rand(c["hd"]), rand(c["hd"])
        w[p + "ff.linear_in.weight"], w[p + "ff.linear_out.weight"] = rand(2 * F, D), rand(D, F)
    w["norm_out.linear.weight"], w["proj_out.weight"] = rand(2 * D, D, gain=0.5), rand(128, D)
    if a.kind == "distilled": w["target_timestep_embedder.linear_1.weight"], w["target_timestep_embedder.linear_2.weight"] = rand(D, 256), rand(D, D)
    write(a.out + "/transformer", w, a.shards if a.size == "full" else 1); n_tr = sum(v.numel() for v in w.values())
    dump(dict(_class_name="Flux3Transformer2DModel", in_channels=128, cond_in_channels=128, num_layers=c["n1"], num_single_layers=c["n2"], attention_head_dim=c["hd"], num_attention_heads=c["heads"], joint_attention_dim=J, timestep_channels=256, mlp_ratio=3.0,
              axes_dims_rope=[c["hd"] // 4] * 4, rope_theta=10000, eps=1e-6, flow_map=a.kind == "distilled"), a.out + "/transformer/config.json")

    dump(dict(_class_name="FlowMatchEulerDiscreteScheduler", num_train_timesteps=1000, shift=6.93, use_dynamic_shifting=False), a.out + "/scheduler/scheduler_config.json")
    T = a.out + "/tokenizer"; os.makedirs(T, exist_ok=True)
    if a.tokenizer:
        shutil.copy(os.path.join(a.tokenizer, "tokenizer.json"), T + "/tokenizer.json"); tc = json.load(open(os.path.join(a.tokenizer, "tokenizer_config.json"))); tc.pop("chat_template", None)
    else:
        keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256)); rest = [b for b in range(256) if b not in keep]
        vocab = {chr(b) if b in keep else chr(256 + rest.index(b)): b for b in range(256)}
        dump(dict(version="1.0", truncation=None, padding=None, added_tokens=[dict(id=i, content=s, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True) for s, i in special.items()], normalizer={"type": "NFC"},
                  pre_tokenizer=dict(type="Sequence", pretokenizers=[dict(type="Split", pattern={"Regex": SPLIT}, behavior="Isolated", invert=False), dict(type="ByteLevel", add_prefix_space=False, trim_offsets=False, use_regex=False)]),
                  post_processor=None, decoder=dict(type="ByteLevel", add_prefix_space=False, trim_offsets=False, use_regex=False), model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False, byte_fallback=False,
                  ignore_merges=False, vocab=vocab, merges=[])), T + "/tokenizer.json")
        tc = dict(tokenizer_class="Qwen2Tokenizer", add_bos_token=False, add_prefix_space=False, bos_token=None, unk_token=None, eos_token="<|im_end|>", pad_token="<|endoftext|>", errors="replace", clean_up_tokenization_spaces=False, model_max_length=262144)
    dump(tc | {"processor_class": "Qwen3VLProcessor"}, T + "/tokenizer_config.json"); open(T + "/chat_template.jinja", "w").write(TEMPLATE)
    pix = dict(patch_size=16, temporal_patch_size=2, merge_size=2, image_mean=[0.5] * 3, image_std=[0.5] * 3, size=dict(shortest_edge=65536, longest_edge=16777216))
    dump(pix | dict(image_processor_type="Qwen2VLImageProcessorFast", processor_class="Qwen3VLProcessor"), T + "/preprocessor_config.json")
    dump(pix | dict(video_processor_type="Qwen3VLVideoProcessor", processor_class="Qwen3VLProcessor"), T + "/video_preprocessor_config.json")
    def spec(name, lib, cls): return [lib, cls, dict(pretrained_model_name_or_path=None, subfolder=name, variant=None, revision=None, type_hint=[lib, cls])]
    dist = a.kind == "distilled"
    mi = dict(_blocks_class_name="Flux3DistilledAutoBlocks" if dist else "Flux3AutoBlocks", _class_name="Flux3DistilledModularPipeline" if dist else "Flux3ModularPipeline", _diffusers_version="0.42.1", text_encoder=spec("text_encoder", "transformers", "Qwen3VLForConditionalGeneration"),
              tokenizer=spec("tokenizer", "transformers", "AutoProcessor"), vae=spec("vae", "diffusers", "AutoencoderKLFlux2"), transformer=spec("transformer", "diffusers", "Flux3Transformer2DModel"), scheduler=spec("scheduler", "diffusers", "FlowMatchEulerDiscreteScheduler"))
    dump(mi, a.out + "/modular_model_index.json")
    print(f"{a.out}: {a.size} {a.kind}, transformer {n_tr:,} text encoder {n_te:,} vae {n_vae:,} parameters")


class Processor:
    """Stands for AutoProcessor where torchvision is missing: the two things that the pipeline calls."""
    def __init__(self, d):
        from transformers import AutoTokenizer
        self.tokenizer = AutoTokenizer.from_pretrained(d)
    def apply_chat_template(self, messages, **kw): return self.tokenizer.apply_chat_template(messages, **kw)


def picture(w, h):
    """A picture of smooth colours and hard edges that any program can make: integers only."""
    import numpy as np
    from PIL import Image
    y, x = np.mgrid[0:h, 0:w]
    return Image.fromarray(np.stack([(x * 5 + y * 3) % 256, (x * y) % 256, 255 * ((x // 8 + y // 8) % 2)], -1).astype("uint8"))


def reference(a):
    import diffusers, transformers
    from diffusers import ClassifierFreeGuidance, Flux3AutoBlocks, Flux3DistilledAutoBlocks
    from PIL import Image
    diffusers.utils.logging.disable_progress_bar(); torch.set_num_threads(a.threads); dtype = getattr(torch, a.dtype)
    cfg = json.load(open(a.out + "/transformer/config.json")); te = json.load(open(a.out + "/text_encoder/config.json"))["text_config"]
    k = cfg["joint_attention_dim"] // te["hidden_size"]; layers = tuple(te["num_hidden_layers"] * i // (k + 1) for i in range(1, k + 1))
    blocks = Flux3DistilledAutoBlocks() if cfg["flow_map"] else Flux3AutoBlocks(); blocks.sub_blocks.pop("prompt_upsampler")
    pipe = blocks.init_pipeline(a.out); names = ["text_encoder", "vae", "transformer", "scheduler"]
    try: import torchvision; names.append("tokenizer")
    except ImportError: pipe.update_components(tokenizer=Processor(a.out + "/tokenizer"))
    pipe.load_components(names, dtype=dtype); pipe.set_progress_bar_config(disable=True)
    if not cfg["flow_map"] and a.guidance is not None: pipe.update_components(guider=ClassifierFreeGuidance(guidance_scale=a.guidance))
    out, calls = {}, []
    def pre(m, args, kw):
        if not calls:
            out["noise"], out["prompt_embeds"], out["img_ids"], out["txt_ids"] = kw["hidden_states"], kw["encoder_hidden_states"], kw["img_ids"], kw["txt_ids"]
            if kw.get("image_cond_hidden_states") is not None: out["reference_tokens"], out["reference_ids"] = kw["image_cond_hidden_states"], kw["image_cond_ids"]
        calls.append((kw["timestep"].float(), kw.get("target_timestep")))
        if not cfg["flow_map"] and len(calls) == 2: out["negative_prompt_embeds"] = kw["encoder_hidden_states"]
    pipe.transformer.register_forward_pre_hook(pre, with_kwargs=True)
    def post(m, args, o): out.setdefault("velocity_0", o[0])  # returns None: the output stays
    pipe.transformer.register_forward_hook(post)
    step, n = pipe.scheduler.step, [0]
    def spy(v, t, x, **kw):
        if n[0] == 0: out["guided_velocity_0"] = v
        r = step(v, t, x, **kw); n[0] += 1; out[f"latents_{n[0]}"] = r[0]; return r
    pipe.scheduler.step = spy
    dec = pipe.vae.decode
    def spy_dec(z, **kw): out["vae_input"] = z; r = dec(z, **kw); out["decoded"] = r[0]; return r
    pipe.vae.decode = spy_dec
    images = [Image.open(f) for f in a.image or []] + [picture(*map(int, s.split("x"))) for s in a.synthetic_image or []]
    kw = dict(prompt=a.prompt, num_inference_steps=a.steps, generator=torch.Generator("cpu").manual_seed(a.noise_seed), text_encoder_out_layers=layers, output_type="pil")
    if a.height: kw |= dict(height=a.height, width=a.width)
    if images: kw["image"] = images if len(images) > 1 else images[0]
    if a.negative is not None: kw["negative_prompt"] = a.negative
    state = pipe(**kw); im = state.get("images")[0]
    out["sigmas"] = pipe.scheduler.sigmas; out["timesteps"] = torch.cat([t for t, _ in calls]); out["image"] = torch.frombuffer(bytearray(im.tobytes()), dtype=torch.uint8).reshape(im.height, im.width, 3)
    if calls[0][1] is not None: out["target_timesteps"] = torch.cat([r.float() for _, r in calls])
    ids = pipe.tokenizer.tokenizer(pipe.tokenizer.apply_chat_template([{"role": "user", "content": a.prompt}], tokenize=False, add_generation_prompt=True))["input_ids"]; out["token_ids"] = torch.tensor(ids, dtype=torch.int32)
    if a.compact:
        out.pop("decoded"); neg = pipe.tokenizer.tokenizer(pipe.tokenizer.apply_chat_template([{"role": "user", "content": a.negative or ""}], tokenize=False, add_generation_prompt=True))["input_ids"]
        for key, m in (("prompt_embeds", len(ids)), ("negative_prompt_embeds", len(neg))):
            if key in out: assert (out[key][:, m:] == out[key][:, m:m + 1]).all(); out[key] = out[key][:, :m + 1]
    os.makedirs(os.path.dirname(os.path.abspath(a.reference)), exist_ok=True); im.save(a.reference + ".png")
    save_file({x: y.detach().cpu().contiguous().clone() for x, y in out.items()}, a.reference + ".safetensors")
    dump(dict(prompt=a.prompt, negative=a.negative, steps=a.steps, noise_seed=a.noise_seed, guidance=None if cfg["flow_map"] else pipe.guider.guidance_scale, height=im.height, width=im.width, size_given=bool(a.height), text_encoder_out_layers=layers, dtype=a.dtype, forwards=len(calls), text_rows=int(out["txt_ids"].shape[0]), compact=a.compact,
              references=[[i.width, i.height] for i in images], synthetic=a.synthetic_image, reference_crop=state.get("reference_crop"), versions=dict(torch=torch.__version__, diffusers=diffusers.__version__, transformers=transformers.__version__)), a.reference + ".json")
    print(f"{a.reference}: {im.width}x{im.height}, {len(calls)} forwards, text {tuple(out['prompt_embeds'].shape)}, latents std {out[f'latents_{a.steps}'].float().std():.4f}, mean {out['image'].float().mean():.3f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", required=True); ap.add_argument("--size", default="tiny", choices=SIZES); ap.add_argument("--kind", default="distilled", choices=["distilled", "base"]); ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--tokenizer"); ap.add_argument("--shards", type=int, default=2); ap.add_argument("--reference", metavar="CASE"); ap.add_argument("--prompt", default="a red fox in the snow"); ap.add_argument("--negative"); ap.add_argument("--guidance", type=float)
    ap.add_argument("--height", type=int, default=0); ap.add_argument("--width", type=int, default=0); ap.add_argument("--steps", type=int, default=4); ap.add_argument("--noise-seed", type=int, default=0); ap.add_argument("--image", nargs="*"); ap.add_argument("--synthetic-image", nargs="*", metavar="WxH")
    ap.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"]); ap.add_argument("--threads", type=int, default=4); ap.add_argument("--compact", action="store_true")
    a = ap.parse_args()
    if a.size == "full" and not a.tokenizer and not os.path.exists(a.out): ap.error("--size full needs --tokenizer")
    if not (a.reference and os.path.exists(a.out + "/modular_model_index.json")): write_model(a)
    if a.reference: reference(a)
