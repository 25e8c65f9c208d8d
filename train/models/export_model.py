#!/usr/bin/env python3
"""Makes a model that millrace-train trains, FILE.pt2, of any torch.nn.Module.

    python export_model.py my_model.py:make_model -o model.pt2 --size 224 --classes 1000
    millrace-train --model model.pt2 --size 224 --classes 1000 --device cpu --shards ...

make_model() returns the module, which maps N x 3 x SIZE x SIZE float32 images, normalised by ImageNet's mean and deviation, to
N x CLASSES scores. It is called with those of `classes`, `num_classes`, `size` and `image_size` that it has parameters for;
MODULE:NAME of an installed module serves as well (torchvision.models:resnet18). Its weights are those that training begins with.

The file holds the compiled training step (loss, scores, gradients, running statistics) and evaluation, the weights, and a
description. millrace-train of the same torch release runs it, on the same kind of processor; it needs no Python. Compiling needs a C++ compiler:
the variable CXX, or g++. The loss is the cross entropy of millrace-train: --label-smoothing, --mixup and --cutmix are its options.
"""

import argparse
import faulthandler
import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import warnings

import torch

FORMAT = 1
WEIGHTS = "extra/millrace/model.safetensors"
MOST_IMAGES = 65536  # of a batch: millrace-train's limit
# Features of a processor that compiled code may use.
CPU_FEATURES = r"(avx|amx|sse|ssse|fma|f16c|bmi|popcnt|vaes|gfni|vpclmul|adx|movbe|sha_ni|lzcnt|abm|pclmul|aes).*"


class Refused(Exception):
    """What cannot be exported, why, and what to do."""


def module_of(name, classes, size):
    """The torch.nn.Module that FILE.py:NAME or MODULE:NAME makes."""
    where, _, what = name.rpartition(":")
    if not where or not what.isidentifier():
        raise Refused(f"'{name}' names no model; give FILE.py:FUNCTION, or MODULE:FUNCTION of an installed module")
    if where.endswith(".py"):
        path = pathlib.Path(where)
        if not path.is_file():
            raise Refused(f"{where}: no such file")
        sys.path.insert(0, str(path.resolve().parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        source = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = source
        spec.loader.exec_module(source)
    else:
        sys.path.insert(0, os.getcwd())
        try:
            source = importlib.import_module(where)
        except ModuleNotFoundError as e:
            raise Refused(f"{where}: {e}; give FILE.py:FUNCTION, or install it") from e
    if not hasattr(source, what):
        raise Refused(f"{where} has no '{what}'")
    made = getattr(source, what)
    if not isinstance(made, torch.nn.Module):
        known = {"classes": classes, "num_classes": classes, "size": size, "image_size": size}
        wanted = inspect.signature(made).parameters
        given = {key: value for key, value in known.items() if key in wanted}
        if any(p.kind == p.VAR_KEYWORD for p in wanted.values()) and "classes" not in given:
            given["num_classes"] = classes  # as torchvision's models take it
        lacking = [n for n, p in wanted.items() if p.default is p.empty and n not in given and "VAR" not in p.kind.name]
        if lacking:
            raise Refused(f"{name} takes {', '.join(map(repr, lacking))}; only {', '.join(known)} are given: set defaults")
        made = made(**given)
    if not isinstance(made, torch.nn.Module):
        raise Refused(f"{name} gave an object of type {type(made).__name__}; it has to be a torch.nn.Module")
    return made


def check_tensors(model):
    """Refuses tensors that training outside Python cannot share with the compiled code."""
    names = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        if id(tensor) in names:
            raise Refused(f"'{names[id(tensor)]}' and '{name}' are one parameter; tied parameters cannot be exported: "
                          "give each its own")
        names[id(tensor)] = name
        if tensor.dtype != torch.float32:
            raise Refused(f"'{name}' is {tensor.dtype}; parameters have to be float32: call .float() on the model")
        if tensor.dim() == 0:
            raise Refused(f"'{name}' is a scalar, which the compiler would make a constant: give it the shape (1,)")
        if tensor.numel() == 0:
            raise Refused(f"'{name}' is empty: leave it out")
    if not any(p.requires_grad for p in model.parameters()):
        raise Refused("the model has no parameters to train")
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.SyncBatchNorm):
            raise Refused(f"'{name}' is a SyncBatchNorm, which talks to other ranks: use BatchNorm")
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.momentum is None:
            raise Refused(f"'{name}' has momentum=None, whose statistics depend on a counter that is not compiled: "
                          "set a momentum")


def set_formats(model):
    """The formats in memory that millrace-train keeps, which the compiled code takes for granted."""
    for parameter in model.parameters():
        if parameter.dim() == 4:  # a fresh copy: kernels of 1 x 1 are contiguous in either format
            like = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device,
                               memory_format=torch.channels_last)
            parameter.data = like.copy_(parameter.data)
        else:
            parameter.data = parameter.data.contiguous()
    for buffer in model.buffers():
        buffer.data = buffer.data.contiguous()


class TrainingStep(torch.nn.Module):
    """The loss and scores of a batch."""

    def __init__(self, model, amp):
        super().__init__()
        self.model, self.amp = model, amp

    def forward(self, images, labels, other_labels, share, smoothing):
        scores = scores_of(self.model, images, self.amp)
        log_p = torch.log_softmax(scores, 1)
        uniform = -log_p.mean()

        def loss_of(wanted):
            right = -log_p.gather(1, wanted.unsqueeze(1)).mean()
            return (1 - smoothing) * right + smoothing * uniform

        loss = share * loss_of(labels) + (1 - share) * loss_of(other_labels)
        return loss, scores.detach()


class Evaluation(torch.nn.Module):
    """The scores of a batch."""

    def __init__(self, model, amp):
        super().__init__()
        self.model, self.amp = model, amp

    def forward(self, images):
        return scores_of(self.model, images, self.amp)


def scores_of(model, images, amp):
    if not amp:
        return model(images).float()
    with torch.autocast(images.device.type, torch.bfloat16):
        scores = model(images)
    return scores.float()


def check_in_python(step, batch, classes):
    """One step in Python: says in plain words what would fail in the compiler."""
    model = step.model
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        scores = model.train()(batch[0])
    except Exception as e:
        shape = " x ".join(map(str, batch[0].shape))
        raise Refused(f"the model fails on images of {shape}: {type(e).__name__}: {e}") from e
    if not isinstance(scores, torch.Tensor) or tuple(scores.shape) != (batch[0].shape[0], classes):
        got = " x ".join(map(str, scores.shape)) if isinstance(scores, torch.Tensor) else type(scores).__name__
        raise Refused(f"the model's output is {got}; in training it has to be a tensor of {batch[0].shape[0]} x {classes} "
                      "scores, for as many images and --classes")
    loss, _ = step(*batch)
    loss.backward()
    without = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    if without:
        raise Refused(f"{', '.join(map(repr, without))} took no part in the loss, so there is no gradient: use "
                      "them in forward(), remove them, or freeze them with requires_grad_(False)")
    if not torch.isfinite(loss):
        raise Refused("the loss of random images is not finite")
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(before[name])
    model.zero_grad()


def exported(program, inputs, what):
    """torch.export of a program whose inputs' first dimension is free."""
    free = {0: torch.export.Dim("images", min=2, max=MOST_IMAGES)}
    shapes = tuple(free if value.dim() else None for value in inputs)
    try:
        return torch.export.export(program, inputs, dynamic_shapes=shapes)
    except Exception as e:
        first = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
        raise Refused(f"torch.export cannot take the model's {what}: {first}\n"
                      "usual causes: an `if` on values of tensors, .item(), or a shape that depends on the number of images "
                      "(view(-1, ...) in place of flatten(1)); see "
                      "https://docs.pytorch.org/docs/stable/export.html") from e


def compiler():
    """The C++ compiler to use: one that has OpenMP, which the code of kernels includes. Refuses if there is none."""
    wanted = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
    found = [name for name in wanted if shutil.which(name.split()[0])]
    if not found:
        raise Refused(f"no C++ compiler ({' or '.join(wanted)}): install g++, or name one by the variable CXX")
    for name in found:
        tried = subprocess.run([*name.split(), "-fopenmp", "-fsyntax-only", "-x", "c++", "-"], input="#include <omp.h>\n",
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
        if tried.returncode == 0:
            return name
    reason = next((line for line in tried.stderr.splitlines() if "error" in line), f"exit {tried.returncode}")
    raise Refused(f"the C++ compiler {found[-1]} has no OpenMP: {reason.strip()}: install g++ (or clang's libomp-dev), "
                  "and name it by the variable CXX")


def compiled(program, what):
    """The files that Inductor makes of an exported program, and the tensors that it works on, by name."""
    import torch._inductor
    from torch.export.pt2_archive._package_weights import Weights

    options = {"aot_inductor.package": True,
               "aot_inductor.package_constants_in_so": False,  # they are millrace-train's own
               "aot_inductor.package_constants_on_disk_format": "pickle_weights",  # and are listed
               # Else parameters of up to 8 numbers become literals, and are never trained.
               "always_keep_tensor_constants": True,
               "aot_inductor.embed_kernel_binary": True,
               # The number of threads is the running program's, not this one's.
               "cpp.dynamic_threads": True,
               "cpp.cxx": (compiler(),)}
    try:
        files = torch._inductor.aot_compile(program.module(check_guards=False), program.example_inputs[0], options=options)
    except Exception as e:
        raise Refused(f"the compiler failed on the model's {what}: {type(e).__name__}: {e}") from e
    tensors = {name: value[0] for f in files if isinstance(f, Weights) for name, value in f.items()}
    return [f for f in files if not isinstance(f, Weights)], tensors


def safetensors_of(tensors):
    """The bytes of a safetensors file; written here so that nothing but torch is needed."""
    import ctypes

    names = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
             torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL"}
    header, parts, at = {}, [], 0
    for name, tensor in tensors.items():
        if tensor.dtype not in names:
            raise Refused(f"'{name}' is {tensor.dtype}, which weights files of millrace cannot hold")
        plain = tensor.detach().cpu().contiguous()
        size = plain.numel() * plain.element_size()
        parts.append(ctypes.string_at(plain.data_ptr(), size) if size else b"")
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def cpu_features():
    """Those features of this processor that compiled code may use."""
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        return []
    flags = re.search(r"^flags\s*:(.*)$", text, re.M)
    return sorted(f for f in flags.group(1).split() if re.fullmatch(CPU_FEATURES, f)) if flags else []


def own_name(name):
    """The name in the user's model of a tensor of TrainingStep or Evaluation."""
    return name.removeprefix("model.")


def counters_of(model, mutated):
    """The buffers that count the steps: millrace-train counts them itself."""
    counters = []
    for name in mutated:
        buffer = model.get_buffer(name)
        if buffer.dim() > 0:
            continue
        module = model.get_submodule(name.rpartition(".")[0])
        if not (isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and name.endswith("num_batches_tracked")):
            raise Refused(f"training changes the buffer '{name}', a scalar, which the compiler would make a constant: "
                          "give it the shape (1,)")
        counters.append(name)
    return counters


def description_of(model, step, joint, evaluation, options):
    """What millrace-train has to know of the model."""
    signature = joint.graph_signature
    specs = signature.output_specs
    kinds = [spec.kind.name for spec in specs if spec.kind.name != "BUFFER_MUTATION"]
    of = signature.backward_signature.gradients_to_parameters
    gradients = [own_name(of[spec.arg.name]) for spec in specs if spec.kind.name == "GRADIENT_TO_PARAMETER"]
    if kinds != ["LOSS_OUTPUT", "USER_OUTPUT"] + ["GRADIENT_TO_PARAMETER"] * len(gradients):
        raise Refused(f"torch {torch.__version__} gives other outputs than were expected: {kinds}")
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    if sorted(gradients) != sorted(trained):
        missing = sorted(set(trained) - set(gradients))
        raise Refused(f"torch's export gives no gradients of {', '.join(missing)}")
    mutated = [own_name(name) for name in signature.buffers_to_mutate.values()]
    if evaluation.graph_signature.buffers_to_mutate:
        raise Refused("evaluation changes buffers: "
                      + ", ".join(map(own_name, evaluation.graph_signature.buffers_to_mutate.values())))
    persistent = model.state_dict().keys()
    buffers = [name for name, _ in model.named_buffers() if name in persistent or name in mutated]
    graph = "\n".join([joint.graph_module.code, evaluation.graph_module.code,
                       *(f"{n} {tuple(t.shape)}" for n, t in model.state_dict().items())])
    return {
        "format": FORMAT,
        "name": options.model.rpartition("/")[2],
        "identity": hashlib.sha256(graph.encode()).hexdigest()[:12],
        "torch": torch.__version__.split("+")[0],
        "device": options.device,
        "cpu": cpu_features(),
        "amp": options.amp,
        "size": options.size,
        "classes": options.classes,
        "least_images": 2,
        "most_images": MOST_IMAGES,
        "gradients": gradients,
        "parameters": [name for name, _ in model.named_parameters()],
        "buffers": buffers,
        "counters": counters_of(model, mutated),
    }


def constants_of(model, tensors):
    """Those tensors of the compiled programs that are neither parameters nor buffers of the model, as PROGRAM:NAME."""
    known = {name for name, _ in model.named_parameters()} | {name for name, _ in model.named_buffers()}
    constants = {}
    for program, of_program in tensors.items():
        for name, value in of_program.items():
            if own_name(name) in known:
                continue
            if not value.is_contiguous():
                raise Refused(f"the constant '{name}' of {tuple(value.shape)} is not contiguous: make it so by .contiguous()")
            constants[f"{program}:{own_name(name)}"] = value.detach()
    return constants


def write_package(path, files, description, weights):
    """Writes the file."""
    import zipfile

    from torch._inductor.package import package_aoti

    package_aoti(str(path), files)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_STORED) as archive:
        root = archive.namelist()[0].split("/")[0]
        archive.writestr(f"{root}/{WEIGHTS}", weights)
        # The reader of PyTorch checks no sums.
        sums = {name.removeprefix(root + "/"): hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}
        archive.writestr(f"{root}/extra/millrace/model.json", json.dumps(description | {"sha256": sums}, indent=1))


def run_compiled(files, program, tensors, inputs):
    """The names of a compiled program's tensors in the user's model, and what it gives for inputs with copies of `tensors`. It is run as
    millrace-train does, from its shared library."""
    library = next(str(f) for f in files if str(f).endswith(".so"))
    device = inputs[0].device
    of = torch._C._aoti
    on_gpu = device.type == "cuda"
    runner = of.AOTIModelContainerRunnerCuda(library, 1, str(device)) if on_gpu else of.AOTIModelContainerRunnerCpu(library, 1)
    names = runner.get_constant_names_to_original_fqns()
    given = {own: tensors.get(own_name(name), tensors.get(f"{program}:{own_name(name)}")) for own, name in names.items()}
    runner.update_constant_buffer(given, False, True)
    return [own_name(name) for name in names.values()], runner.run(list(inputs))


def check_compiled(files, step, batch, description, constants):
    """Refuses files whose training step differs from the module's in PyTorch, or does not draw at random where that does."""
    import copy

    def in_python(seed):
        own = copy.deepcopy(step)
        torch.manual_seed(seed)
        loss, _ = own(*batch)
        loss.backward()
        return loss.detach(), dict(own.model.named_parameters())

    def as_compiled(seed):
        tensors = {name: p.detach() for name, p in step.model.named_parameters()} | dict(step.model.named_buffers())
        torch.manual_seed(seed)
        names, outputs = run_compiled(files, "training", constants | tensors, batch)
        lacking = sorted(set(description["gradients"]) - set(names))
        if lacking:
            raise Refused(f"the compiler made constants of {', '.join(lacking)}, which would not be trained")
        return outputs

    loss, parameters = in_python(1)
    outputs = as_compiled(1)
    if loss.item() != in_python(2)[0].item():
        if outputs[0].item() == as_compiled(2)[0].item():
            raise Refused("the model draws at random in training, but its compiled form gives the same each time")
        return
    found = {"the loss": outputs[0]} | dict(zip(description["gradients"], outputs[2:]))
    expected = {"the loss": loss} | {name: parameters[name].grad for name in description["gradients"]}
    for name, value in found.items():
        off = (value.float() - expected[name].float()).abs().max().item()
        largest = expected[name].float().abs().max().item()
        if not off <= (0.1 if description["amp"] else 0.02) * largest + 1e-5:
            raise Refused(f"the compiled training step differs from PyTorch's in '{name}' by {off:.3g}, of {largest:.3g}: "
                          "this is an error of the compiler; please report it with the model")


def export(options):
    """Exports what the command line says."""
    compiler()
    device = torch.device(options.device)
    torch.manual_seed(options.seed)
    model = module_of(options.model, options.classes, options.size)
    model = model.to(device).train()
    check_tensors(model)
    set_formats(model)
    images = torch.randn(options.batch_size, 3, options.size, options.size, device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.arange(options.batch_size, device=device) % options.classes
    batch = (images, labels, labels.flip(0).clone(), torch.tensor(0.75, device=device), torch.tensor(0.1, device=device))
    step = TrainingStep(model, options.amp)
    check_in_python(step, batch, options.classes)

    from torch.export.experimental import _export_forward_backward
    from torch.nn.attention import SDPBackend, sdpa_kernel
    try:
        # Of the fused attention on CPUs, torch's decomposition is for inference: gradients would be wrong.
        with sdpa_kernel(SDPBackend.MATH):
            joint = _export_forward_backward(exported(step, batch, "training step"))
    except Refused:
        raise
    except Exception as e:
        raise Refused(f"torch cannot export the backward of the model: {type(e).__name__}: {e}") from e
    scores = Evaluation(model.eval(), options.amp)
    with torch.no_grad():
        try:
            evaluation = exported(scores, (images,), "evaluation")
        except Refused:  # some fused attentions of GPUs take no batches of any size
            with sdpa_kernel(SDPBackend.MATH):
                evaluation = exported(scores, (images,), "evaluation")
    model.train()
    description = description_of(model, step, joint, evaluation, options)
    print("compiling: this takes a minute or more", file=sys.stderr)
    training, tensors = compiled(joint, "training step")
    scoring, others = compiled(evaluation, "evaluation")
    constants = constants_of(model, {"training": tensors, "evaluation": others})
    weights = safetensors_of(dict(model.named_parameters()) | dict(model.named_buffers()) | constants)
    output = pathlib.Path(options.output)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".export-") as folder:
        draft = pathlib.Path(folder) / output.name
        write_package(draft, {"training": training, "evaluation": scoring}, description, weights)
        check_compiled(training, step, batch, description, constants)
        os.replace(draft, output)
    count = sum(p.numel() for p in model.parameters())
    print(f"{options.output}: {options.model} of {count} parameters, for --size {options.size} --classes {options.classes} "
          f"--device {options.device} and torch {description['torch']}")


def quieten():
    """Leaves what torch says while it fails to the one message of this program."""
    import logging

    torch._logging.set_logs(all=logging.CRITICAL)


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], epilog=__doc__.split("\n\n", 1)[1],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="FILE.py:FUNCTION", help="what makes the torch.nn.Module")
    parser.add_argument("-o", "--output", required=True, metavar="FILE.pt2", help="the file to write")
    parser.add_argument("--size", type=int, default=224, metavar="PIXELS", help="side of the images (224)")
    parser.add_argument("--classes", type=int, default=1000, metavar="N", help="number of classes (1000)")
    parser.add_argument("--batch-size", type=int, default=32, metavar="IMAGES",
                        help="of the batch that the compiler sees; others run as well (32)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the initial weights (0)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where it will be trained (cpu)")
    parser.add_argument("--amp", action="store_true", help="bf16 autocast within the model, for --device cuda")
    options = parser.parse_args(words)
    try:
        if not options.output.endswith(".pt2"):
            raise Refused(f"-o {options.output}: the name has to end in .pt2")
        if not pathlib.Path(options.output).parent.is_dir():
            raise Refused(f"-o {options.output}: there is no such folder")
        if options.batch_size < 2 or options.size < 8 or options.classes < 1:
            raise Refused("--batch-size has to be 2 or more, --size 8 or more, --classes 1 or more")
        if options.amp and options.device == "cpu":
            raise Refused("--amp needs --device cuda")
        warnings.filterwarnings("ignore")
        quieten()
        with tempfile.TemporaryDirectory() as cache:
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", cache)
            export(options)
    except Refused as e:
        print(f"export_model: {e}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    faulthandler.enable()  # compiled code runs in this process: where it crashes, Python's stack is told
    sys.exit(main())
