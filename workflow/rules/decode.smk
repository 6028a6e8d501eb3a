rule plan_shards:
    input:
        manifest=MANIFEST,
        index=INDEX,
    output:
        plan=f"{EXPERIMENT}/plan/plan.json",
        shards=[f"{EXPERIMENT}/plan/{name}" for name in SHARD_FILES],
    log:
        f"{EXPERIMENT}/logs/plan.log",
    conda:
        ENV
    params:
        options=CFG.json(CFG.root.plan.to_dict()),
        shards=SHARDS,
        version=plan_stage.VERSION,
        plan_dir=lambda wildcards, output: Path(output.plan).parent,
    shell:
        "espnet3-rules plan --manifest {input.manifest:q} --out {params.plan_dir:q} --shards {params.shards}"
        " --options {params.options:q} --log {log:q}"


rule decode_shard:
    input:
        manifest=MANIFEST,
        index=INDEX,
        plan=f"{EXPERIMENT}/plan/plan.json",
        shard=f"{EXPERIMENT}/plan/{{number}}-of-{{shards}}.jsonl",
        model=lambda wildcards: trained_model(wildcards.system),
        files=lambda wildcards: CFG.decoder_files(wildcards.decoder) + CFG.model_files(wildcards.system),
        retry=lambda wildcards: existing(f"{EXPERIMENT}/{gate_stage.RETRY}".format(**wildcards)),
    output:
        f"{EXPERIMENT}/shards/{{number}}-of-{{shards}}.jsonl",
    log:
        f"{EXPERIMENT}/logs/decode-{{number}}-of-{{shards}}.log",
    conda:
        ENV
    threads: 1
    params:
        model=lambda wildcards, input: CFG.model(wildcards.system, input.model),
        given=lambda wildcards: CFG.json(CFG.systems[wildcards.system].model),
        options=lambda wildcards: CFG.json(CFG.decoding(wildcards.decoder)),
        version=lambda wildcards: CFG.decoding_version(wildcards.system),
        # cannot change the text: a parameter that looks at `threads` reruns nothing
        quiet=lambda wildcards, threads: CFG.json(CFG.decoding_quiet(wildcards.decoder, threads)),
        plan_dir=lambda wildcards, input: Path(input.plan).parent,
        journal=lambda wildcards, output: Path(output[0]).parent.parent / "journal",
    shell:
        "espnet3-rules decode --manifest {input.manifest:q} --plan {params.plan_dir:q}"
        " --shard {wildcards.number} --shards {wildcards.shards} --model {params.model:q}"
        " --journal {params.journal:q} --out {output:q} --options {params.options:q} --options {params.quiet:q}"
        " --log {log:q}"


rule merge_shards:
    input:
        manifest=MANIFEST,
        index=INDEX,
        plan=f"{EXPERIMENT}/plan/plan.json",
        shards=[f"{EXPERIMENT}/shards/{name}" for name in SHARD_FILES],
    output:
        hypotheses=f"{EXPERIMENT}/hypotheses.jsonl",
        failed=f"{EXPERIMENT}/failed.tsv",
        text=f"{EXPERIMENT}/text",
    log:
        f"{EXPERIMENT}/logs/merge.log",
    conda:
        ENV
    params:
        version=merge_stage.VERSION,
        plan_dir=lambda wildcards, input: Path(input.plan).parent,
        out=lambda wildcards, output: Path(output.hypotheses).parent,
    shell:
        "espnet3-rules merge --manifest {input.manifest:q} --plan {params.plan_dir:q} --shards {input.shards:q}"
        " --out {params.out:q} --log {log:q}"
