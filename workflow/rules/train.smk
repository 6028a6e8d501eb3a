rule train_system:
    input:
        train=lambda wildcards: [manifest(name) for name in CFG.systems[wildcards.system].train],
        valid=lambda wildcards: [manifest(name) for name in CFG.systems[wildcards.system].valid],
    output:
        weights=f"{EXP}/{{system}}/model/model.safetensors",
        tokens=f"{EXP}/{{system}}/model/tokens.json",
        config=f"{EXP}/{{system}}/model/config.json",
    log:
        f"{EXP}/{{system}}/logs/train.log",
    conda:
        ENV
    threads: workflow.cores or 1
    params:
        options=lambda wildcards: CFG.json(CFG.training(wildcards.system)),
        version=lambda wildcards: CFG.training_version(wildcards.system),
        # cannot change the model: a parameter that looks at `threads` reruns nothing
        quiet=lambda wildcards, threads: CFG.json(CFG.training_quiet(wildcards.system, threads)),
        model_dir=lambda wildcards, output: Path(output.config).parent,
        run_dir=lambda wildcards, output: Path(output.config).parent.parent / "runs",
    shell:
        "espnet3-rules train --train {input.train:q} --valid {input.valid:q} --model-dir {params.model_dir:q}"
        " --run-dir {params.run_dir:q} --options {params.options:q} --options {params.quiet:q} --log {log:q}"
