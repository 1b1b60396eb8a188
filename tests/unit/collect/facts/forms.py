"""How trainings are really given credentials, and arguments that look a little like them but are harmless.

Each of `FORMS` is one or more words of a command, written as for a shell, in which `{...}` stands around the secret.
"""

from __future__ import annotations

import re
from base64 import b64encode, urlsafe_b64encode

_DRAWN = "Zq7Xw9Lp2Rt5Vb8NcY4kD1sG6hJ3mF0a"
_HEX = "3f9a1c5e7b2d4860"
_WEAK = "hunter2"
_SECRET = re.compile(r"(?<!\{)\{([^{}]+)\}(?!\})")


def _b64(text: str) -> str:
    return b64encode(text.encode()).decode()


PROGRAMS = [
    # Databases.
    ["mysql", "-uroot", "-p{s3cr3t}"],
    ["mysql", "-u", "root", "-p{hunter2}", "runs"],
    ["mysqldump", "--user=root", "--password={x}", "runs"],
    ["mariadb", "-uroot", "-p{hunter2}"],
    ["PGPASSWORD={hunter2}", "psql", "-h", "db"],
    ["psql", "host=db user=me password={hunter2} dbname=runs"],
    ["psql", "postgresql://me:{hunter2}@db:5432/runs"],
    ["mongosh", "-u", "me", "-p", "{hunter2}"],
    ["mongodb+srv://me:{hunter2}@cluster0.example.net/runs?retryWrites=true"],
    ["redis-cli", "-h", "cache", "--pass", "{hunter2}"],
    ["redis://:{hunter2}@cache:6379/0"],
    ["rediss://default:{hunter2}@cache:6380"],
    ["amqp://guest:{guest2}@mq:5672/%2f"],
    ["sqlcmd", "-S", "db", "-U", "sa", "-P", "{Passw0rd!}"],
    ["bcp", "runs.t", "out", "t.csv", "-U", "sa", "-P", "{Passw0rd!}"],
    ["sqlplus", "me/{hunter2}@//db:1521/runs"],
    ["--dsn", "mysql+pymysql://me:{hunter2}@db/runs"],
    ["--dsn", "Server=db;Database=runs;User Id=sa;Password={hunter2};Encrypt=yes"],
    ["--dsn", "Server=tcp:db,1433;Uid=sa;Pwd={hunter2};"],
    ["--dsn", "jdbc:mysql://db/runs?user=me&password={hunter2}"],
    ["--storage", "mysql://optuna:{hunter2}@db/optuna"],
    ["optuna", "create-study", "--storage", "postgresql://u:{x}@h/d"],
    ["clickhouse-client", "--user", "me", "--password", "{1234}"],
    ["influx", "--token", "{" + _DRAWN + "}"],
    # File shares and transfers.
    ["smbclient", "//nas/data", "-U", "DOMAIN\\user%{hunter2}"],
    ["smbclient", "//nas/data", "-U", "user%{x}"],
    ["smbclient", "//nas/data", "-UDOMAIN\\user%{hunter2}"],
    ["smbclient", "--user=DOMAIN/user%{hunter2}"],
    ["bash", "-c", "smbclient //nas/data -U 'DOMAIN\\user%{hunter2}' -c ls"],
    ["rpcclient", "-U", "corp\\me%{Sommer}", "nas"],
    ["mount", "-t", "cifs", "//nas/data", "/mnt", "-o", "username=me,password={hunter2},vers=3.0"],
    ["mount", "-t", "cifs", "//nas/data", "/mnt", "-o", "user=me,pass={hunter2}"],
    ["--share", "//u:{x}@host/data"],
    ["--share", "//me:{hunter2}@nas/data"],
    ["--share", "smb://DOMAIN;me:{hunter2}@nas/data"],
    ["lftp", "-u", "me,{hunter2}", "ftp.example.org"],
    ["lftp", "-u", "me,{x}", "ftp.example.org"],
    ["ncftpget", "-u", "me", "-p", "{hunter2}", "host", ".", "a"],
    ["ftp://me:{hunter2}@ftp.example.org/a"],
    ["sshpass", "-p", "{hunter2}", "ssh", "me@host"],
    ["sshpass", "-p{hunter2}", "rsync", "-a", "a", "b"],
    ["sftp://me:{hunter2}@host/data"],
    ["rclone", "copy", ":sftp,host=h,user=me,pass={hunter2}:/data", "/data"],
    ["rclone", "--sftp-pass", "{hunter2}"],
    ["plink", "-pw", "{hunter2}", "me@host"],
    ["unzip", "-P", "{hunter2}", "data.zip"],
    ["7z", "x", "-p{hunter2}", "data.7z"],
    ["openssl", "enc", "-d", "-aes256", "-pass", "pass:{hunter2}", "-in", "a"],
    ["openssl", "enc", "-k", "{hunter2}"],
    ["gpg", "--passphrase", "{hunter2}", "-d", "data.gpg"],
    ["expect", "-c", "send \"password={hunter2}\\r\""],
    # Requests.
    ["curl", "-u", "me:{hunter2}", "https://host"],
    ["curl", "-u", "me:{1234}", "https://host"],
    ["curl", "-ume:{hunter2}", "https://host"],
    ["curl", "--user", "me:{hunter2}"],
    ["curl", "--proxy-user", "me:{hunter2}"],
    ["curl", "-U", "me:{hunter2}"],
    ["curl", "-H", "Authorization: Bearer {" + _DRAWN + "}"],
    ["curl", "-H", "X-API-Key: {hunter2}"],
    ["curl", "-H", "PRIVATE-TOKEN: {hunter2}"],
    ["curl", "-HX-Auth-Token:{hunter2}"],
    ["curl", "-H", "Ocp-Apim-Subscription-Key: {" + _HEX * 2 + "}"],
    ["curl", "-b", "session={" + _HEX + "}"],
    ["curl", "--oauth2-bearer", "{hunter2}"],
    ["wget", "--http-password={hunter2}", "https://host/a"],
    ["wget", "--user=me", "--password", "{hunter2}"],
    ["wget", "--header=Cookie: a={hunter2}"],
    ["wget", "https://me:{hunter2}@host/a.tar"],
    ["aria2c", "--http-passwd={hunter2}", "https://host/a"],
    ["http", "-a", "me:{hunter2}", "host"],
    ["http", "host", "Authorization:Token {hunter2}"],
    ["git", "clone", "https://oauth2:{glpat-abcdefghij0123456789}@gitlab.com/a/b"],
    ["git", "clone", "https://x-access-token:{hunter2}@github.com/a/b"],
    ["pip", "install", "--index-url", "https://me:{hunter2}@pypi.example.org/simple"],
    ["docker", "login", "-u", "me", "-p", "{hunter2}", "registry"],
    ["bash", "-c", "echo {hunter2} | docker login -u me --password-stdin"],
    ["bash", "-c", "docker run -e WANDB_API_KEY={" + _HEX + "} img"],
    ["huggingface-cli", "login", "--token", "{hf_abcdefghijklmnopqrstuvwxyzABCDEF}"],
    ["wandb", "login", "{" + (_HEX * 3)[:40] + "}"],
    ["wandb", "login", "--relogin", "{" + (_HEX * 3)[:40] + "}"],
    ["bash", "-c", "wandb login --relogin {" + (_HEX * 3)[:40] + "} && python train.py"],
    ["ldapsearch", "-D", "cn=me", "-w", "{hunter2}", "-b", "dc=x"],
    ["kinit", "--password={hunter2}"],
    ["az", "login", "--service-principal", "-u", "app", "-p", "{hunter2}", "--tenant", "t"],
    ["kaggle", "--key", "{" + _HEX * 2 + "}"],
    ["comet", "--api_key", "{AbCdEfGh1234}"],
    ["machine host login me password {hunter2}"],
    ["machine", "host", "login", "me", "password", "{hunter2}"],
    ["default login me password {hunter2}"],
]  # fmt: skip
LOOKS = [
    "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH", "api_org_abcdefghijklmnopqrstuvwxyzABCDEFGH", "sk-" + _DRAWN + _DRAWN[:16],
    "sk-proj-" + _DRAWN * 2, "sk-ant-api03-" + _DRAWN * 2, "sk-svcacct-" + _DRAWN, "ghp_" + _DRAWN + "abcd",
    "gho_" + _DRAWN + "abcd", "github_pat_11ABCDEFG0" + _DRAWN * 2, "glpat-" + _DRAWN[:20], "glptt-" + _HEX * 2,
    "xoxb-123456789012-1234567890123-" + _DRAWN[:24], "xoxp-" + "1234567890-" * 3 + _HEX, "xapp-1-A012-345-" + _HEX,
    "AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "AIzaSyA-" + _DRAWN, "ya29.a0AfB_" + _DRAWN, "GOCSPX-" + _DRAWN[:28], "1//0g" + _DRAWN,
    "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0." + _DRAWN,
    "-----BEGIN PRIVATE KEY-----\nMIIE" + _DRAWN + "\n-----END PRIVATE KEY-----",
    "-----BEGIN OPENSSH PRIVATE KEY-----\\nb3Bl" + _DRAWN + "\\n-----END OPENSSH PRIVATE KEY-----",
    "npm_" + _DRAWN + "abcd", "pypi-AgEIcHlwaS5vcmc" + _DRAWN, "dckr_pat_" + _DRAWN[:27], "nvapi-" + _DRAWN * 2,
    "r8_" + _DRAWN, "gsk_" + _DRAWN * 2, "dapi" + _HEX * 2, "hvs." + _DRAWN * 2, "SG." + _DRAWN[:22] + "." + _DRAWN,
    "wandb_v1_" + _DRAWN, "sq0csp-" + _DRAWN, "EAACEdEose0cBA" + _DRAWN, "rk_live_" + _DRAWN[:24],
    "lsv2_pt_" + _HEX * 2 + "_0123456789", "AccountKey=" + _b64(_DRAWN * 2),
    _b64(f"password={_WEAK}"), _b64(f"user=me\npassword={_WEAK}\n"), _b64(f'{{"password": "{_WEAK}"}}'),
    _b64(f"machine host login me password {_WEAK}"), urlsafe_b64encode(f"token: {_DRAWN}??>".encode()).decode(),
    _b64(f"https://me:{_WEAK}@host/x"), _b64(f"me:{_WEAK}"), _b64("passwort=geheim"), _b64(f"export HF_TOKEN={_WEAK}"),
]  # fmt: skip
"""Secrets that are known by what they look like, wherever they are."""
STORAGE = [
    ["s3://AKIAIOSFODNN7EXAMPLE:{" + _DRAWN + "}@bucket/data"],
    ["https://b.s3.amazonaws.com/k?X-Amz-Signature={" + _HEX * 4 + "}&X-Amz-Date=20260101"],
    ["https://b.s3.amazonaws.com/k?AWSAccessKeyId={AKIAIOSFODNN7EXAMPLE}&Signature={x%2By}"],
    ["https://storage.googleapis.com/b/o?X-Goog-Signature={" + _HEX * 4 + "}"],
    ["https://acc.blob.core.windows.net/c?sv=2024-01-01&sig={abc%3D}&se=2027-01-01"],
    ["--sas", "sv=2024-01-01&ss=b&srt=sco&sp=r&sig={abc%2Fdef%3D}"],
    ["--sas", "?sv=2024-01-01&sp=r&sig={x}"],
    ["az://container/path?{sv=2024&sig=abc}"],
    ["DefaultEndpointsProtocol=https;AccountName=a;AccountKey={" + _b64(_DRAWN) + "};EndpointSuffix=core.windows.net"],
    ["SharedAccessSignature={sv=2024&sig=abc}"],
    ["Endpoint=sb://b.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey={" + _b64(_DRAWN) + "}"],
    ["--storage-options", '{{"key": "{AKIAIOSFODNN7EXAMPLE}", "secret": "{hunter2}"}}'],
    ["--storage-options", "account_key={hunter2},anon=false"],
    ["--s3.secret={hunter2}"],
    ["fs.s3a.secret.key={hunter2}"],
    ["--conf", "spark.hadoop.fs.s3a.secret.key={hunter2}"],
    ["gs://bucket/x?access_token={ya29.abcdefghijk}"],
]  # fmt: skip
SETTINGS = [
    ["WANDB_API_KEY={" + _HEX + "}", "python", "train.py"],
    ["env", "HF_TOKEN={x}", "python", "train.py"],
    ["export", "AWS_SECRET_ACCESS_KEY={hunter2}"],
    ["AWS_SESSION_TOKEN={hunter2}"],
    ["bash", "-c", "export OPENAI_API_KEY={hunter2}; python train.py"],
    ["bash", "-c", "HF_TOKEN='{two words}' python train.py"],
    ["MYSQL_PWD={hunter2}"],
    ["RESTIC_PASSWORD={hunter2}"],
    ["GIT_ASKPASS_TOKEN={hunter2}"],
    ["-e", "NEPTUNE_API_TOKEN={hunter2}"],
    ["-x", "COMET_API_KEY={hunter2}"],
    ["trainer.logger.api_key={hunter2}"],
    ["++logger.wandb.key={hunter2abc}"],
    ["logger={{wandb: {{api_key: {hunter2} }}}}"],
    ["+env.HF_TOKEN={hunter2}"],
    ["~x", "db.password='{two words}'"],
    ["--set", "db.auth.password={hunter2},db.user=me"],
    ["--config", '{{"db": {{"user": "me", "passwd": "{hunter2}"}}}}'],
    ["--config", "{{'auth': {{'token': '{hunter2}'}}}}"],
    ["--config", "db:\n  user: me\n  password: {hunter2}\n"],
    ["--config", "auths:\n  registry:\n    auth: {" + _b64("me:hunter2") + "}\n"],
    ["--config", '{{"auths": {{"ghcr.io": {{"auth": "{' + _b64("me:x2") + '}"}}}}}}'],
    ["--login", "me:{hunter2}"],
    ["--auth", "me:{hunter2}"],
    ["--credentials", "me:{hunter2}"],
    ["--basic-auth", "me {hunter2}"],
    ["--user", "me", "--pw", "{hunter2}"],
    ["--pwd", "{hunter2}"],
    ["--passwd", "{12345678}"],
    ["--otp", "{123456}"],
    ["--mfa-code", "{123456}"],
    ["--secret-key-base", "{hunter2}"],
    ["--client-secret", "{hunter2}"],
    ["--encryption-key", "{hunter2}"],
    ["--hmac-key", "{" + _DRAWN + "}"],
    ["--license-key", "{AAAA-BBBB-CCCC}"],
    ["--neptune-token", "{hunter2}"],
    ["--tok", "{" + _DRAWN + "}"],
    ["--apikey:{hunter2}"],
    ["/password:{hunter2}"],
    ["--password:{hunter2}"],
    ["password", "{hunter2}"],
    ["password: {hunter2}"],
    ["Password={two words}"],
    ["<secret>{hunter2}</secret>"],
    ["x.json?password={hunter2}"],
    ["--url=https://host/x#token={hunter2}"],
    ["https://api.telegram.org/bot123456789:{" + _DRAWN + "}/sendMessage"],
    ["https://hooks.slack.com/services/T00/B00/{" + _DRAWN[:24] + "}"],
    ["https://discord.com/api/webhooks/1/{" + _DRAWN + "}"],
]  # fmt: skip
LANGUAGES = [
    "passwort", "kennwort", "geheimnis", "zugangsdaten", "contraseña", "contrasena", "clave", "mot_de_passe",
    "mot-de-passe", "motdepasse", "mdp", "senha", "parola", "parola_d_ordine", "wachtwoord", "lösenord", "losenord",
    "adgangskode", "passord", "salasana", "hasło", "haslo", "heslo", "jelszó", "jelszo", "lozinka", "şifre", "sifre",
    "пароль", "parol", "секрет", "κωδικός", "סיסמה", "パスワード", "暗証番号", "密码", "密碼", "口令", "비밀번호",
    "암호", "รหัสผ่าน", "mật_khẩu", "matkhau", "kata_sandi", "पासवर्ड", "كلمة_المرور",
]  # fmt: skip
"""What a password is called in other languages."""
IN_LANGUAGES = [
    form
    for word in LANGUAGES
    for form in (
        [f"--{word}", "{hunter2}"],
        [f"{word}={{hunter2}}"],
        [f"db.{word}: {{Sommer}}"],
        [f"{word.upper()}={{x7}}"],
    )
]
FORMS = [*PROGRAMS, *STORAGE, *SETTINGS, *IN_LANGUAGES]

HARMLESS = [
    "--tokenizer-path /data/tok.model", "-t cifar10", "-a adamw", "-a resnet50",
    "--lr 0.1", "--learning-rate=3e-4", "-b 32", "--epochs=90", "--max-tokens 4096", "--num_tokens=7",
    "--tokenizer gpt2", "--tokenizer=meta-llama/Llama-3-8B", "--model meta-llama/Llama-3-8B-Instruct",
    "--model_name_or_path mistralai/Mixtral-8x7B-v0.1", "--keyframes 4", "--key-frames=8", "--keypoints 17",
    "--dataset HuggingFaceFW/fineweb-edu", "--date 2026-11-28", "--since 2026-11-28T10:00:00Z",
    "--name llama3_8b_lora_r16_a32_lr1e-4_bs8", "--run-name resnet50-a100-8x-run12-seed3", "--seed 1234567890",
    "--output-dir /mnt/data/runs/2026-11-28_10-00-00", "--ckpt s3://bucket/run/step-100000/model.pt", "-p 8080",
    "--data gs://bucket/imagenet/{000000..001281}.tar", "--master-addr 10.0.0.1", "--master-port 29500", "-u 1000:1000",
    "--rdzv-endpoint host:29500", "--rdzv_id job_123456", "--nproc-per-node 8", "--nnodes 2:4", "--pin-memory True",
    "--pin_memory=true", "--pin-memory", "--num-workers 8", "--passes 3", "--pass 2", "--warmup-passes 10", "-k 5",
    "--no-pin-memory", "--betas (0.9,0.999)", "optimizer.betas=[0.9,0.95]", "model=resnet50", "+trainer.max_epochs=3",
    "model.hidden_size=4096", "~callbacks", "hydra.run.dir=/runs/a", "data.transform={resize: 224, crop: 224}",
    "trainer={devices: 8, precision: bf16-mixed}", "++optimizer.lr=3e-4", "hydra/launcher=submitit_slurm",
    "--config cfg.yaml", '{"lr": 0.1, "name": "a"}', "--deepspeed ds_zero3.json", "--fsdp full_shard", "--bf16",
    "--gradient-checkpointing", "--token-length 3", "--tokens-per-sample 2048", "--vocab-size 32000",
    "--stop-token-ids 1,2,3", "--n-tokens 5", "nvcr.io/nvidia/pytorch:24.01-py3", "--wandb-project my-project",
    "--wandb-entity team", "--wandb-mode offline", "--hub-model-id me/llama-3-8b-sft", "--report-to wandb",
    "https://host:8080/x", "--proxy http://proxy:3128", "ViT-B-32-laion2B-s34B-b79K",
    "Qwen/Qwen2.5-VL-72B-Instruct-GPTQ-Int4", "DistilBertForSequenceClassification",
    "/mnt/Data01/ImageNet2012/ILSVRC2012_img_val/ResNet50_V2_epoch90_acc76.13.pth", "C:\\data\\run", "\\\\nas\\data",
    "//nas/data", "--secretary bob", "--author me", "--keyboard us", "--monkey 1", "--hash-size 16",
    "--sep-token-id 102", "--patience 5", "--pattern *.jpg", "--drop-path 0.1", "--percent 50%", "--split train[:90%]",
    "--split validation[10%:20%]", "--format %Y-%m-%d", "--normalize 0.485,0.456,0.406", "-o user=me", "--sig 0.5",
    "--sigma 1.0", "--signal-length 16000", "--code-dim 256", "--codebook-size 1024", "--parole no",
    "--sequence ACGTACGTACGTACGTACGTACGTACGTACGT", "--moe-top-k 2", "--clip 1.0", "--haslam x",
    "--timestamp 1795860990579478364", "--pwconv 3", "--pw-size 4", "--auth-free", "--mdpath /a",
    "--parolaimages /data/p", "--chunk 0-1023", "-Pfoo=bar", "-P 8", "-a 0.99", "-w 1e-4", "-U", "-w 4", "-pretrained",
    "data=imagenet-1k-256x256", "--layers=conv3x3,conv1x1", "-print", "--env NCCL_DEBUG=INFO", "OMP_NUM_THREADS=8",
    "CUDA_VISIBLE_DEVICES=0,1,2,3", "PYTHONPATH=/a:/b", "--senhance 2", "--salasana-free", "--hyperparameters eyJ",
]  # fmt: skip
"""Each is one or two words, split at the first blank."""
IN_DOUBT = [
    "--commit 3f9a1c5e7b2d48603f9a1c5e7b2d48603f9a1c5e", "--revision 3f9a1c5",
    "--sha 3f9a1c5e7b2d48603f9a1c5e7b2d48603f9a1c5e3f9a1c5e7b2d48603f9a1c5e",
    "--run-id 3f2a9c1e-7b4d-4e8f-9a6b-1c2d3e4f5a6b", "--resume 3f2a9c1e-7b4d-4e8f-9a6b-1c2d3e4f5a6b",
    '--prompt "the password is required"', "--eos-token </s>", "--pad_token=<pad>", "--special-tokens <a>,<b>",
    "--image image:tag@sha256:3f9a1c5e7b2d4860", "--wandb_run_id 1a2b3c4d", "git+https://github.com/a/b@v1.2",
    "--share //nas/data/set@v2", "--clave-model x", "--mask-token [MASK]", "--load a%20b",
    "--units 50%50", "--host user@host", "me@host:/data", "--mail a@b.org", "--otp-size 4", "--encoder-key image",
    "--uuid 6ba7b810-9dad-11d1-80b4-00c04fd430c8", "--nsys-output report_%h_%p",
]  # fmt: skip
"""Harmless as well, and hidden, as nothing tells them from a credential."""


def spelled(form: list[str]) -> tuple[list[str], list[str]]:
    """The arguments of a form, and the secrets in them."""
    secrets = [found for word in form for found in _SECRET.findall(word)]
    plain = [_SECRET.sub(r"\1", word).replace("{{", "{").replace("}}", "}") for word in form]
    return plain, secrets
