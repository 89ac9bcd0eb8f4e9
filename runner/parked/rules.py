"""What decides about a failure, as data. Tables are read from the top; the first row that holds names the reason.

A row says which evidence it looks at, what that means, and where that is known from. Structured evidence (status,
`ErrorInfo.reason`, quota, finish reason) stands before text. Text is searched without what it quotes and only in its
first 240 characters, so that words of a user which the server repeats decide nothing. `docs/failures.md` is made from
these tables by `python -m parked.failures_page`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from parked.verdict import Reason, Scope

TEXT_CHARS: Final = 240


class HttpRule(NamedTuple):
    """One row for an error that a server sent. What is given must hold; an empty field holds for all."""

    name: str
    reason: Reason
    source: str
    statuses: tuple[int, ...] = ()  # HTTP, or what the gRPC code amounts to
    canonical: tuple[str, ...] = ()  # `error.status`, e.g. FAILED_PRECONDITION
    infos: tuple[str, ...] = ()  # any `ErrorInfo.reason` of the details
    quota: str = ""  # `zero`, `day` or `named`: what the violated quotas say
    text: str = ""  # a regular expression, any letter case, in the message without its quotes
    scope: Scope | None = None  # None: as usual for the reason


class ExceptionRule(NamedTuple):
    """One row for an exception; `names` are looked for along the class hierarchy, httpx2 counts as httpx."""

    name: str
    reason: Reason
    source: str
    names: tuple[str, ...]  # `package.Class`; of `google` two parts: `google.auth.RefreshError`
    text: str = ""  # a regular expression, any letter case, in the message


class ValueRule(NamedTuple):
    """One row for a value of a closed list: finish reason, block reason, state of a batch."""

    name: str
    reason: Reason
    source: str
    values: tuple[str, ...]  # empty: every other value, also one that is newer than this code


class ShapeRule(NamedTuple):
    """One row for what only the shape of an answer shows; `judge.py` and `answers.py` find it by its name."""

    name: str
    reason: Reason
    source: str
    evidence: str


_ERROR_REASONS = "https://cloud.google.com/php/docs/reference/common-protos/latest/Api.ErrorReason"
_TROUBLESHOOTING = "https://ai.google.dev/gemini-api/docs/troubleshooting"
_RATE_LIMITS = "https://ai.google.dev/gemini-api/docs/rate-limits"
_GRPC = "https://github.com/googleapis/googleapis/blob/master/google/rpc/code.proto"
_RFC_9110 = "https://www.rfc-editor.org/rfc/rfc9110"
_SDK_TYPES = "https://github.com/googleapis/python-genai/blob/main/google/genai/types.py"
_SDK_CLIENT = "https://github.com/googleapis/python-genai/blob/main/google/genai/_api_client.py"
_PYTHON = "https://docs.python.org/3/library/exceptions.html"
_HTTPX = "https://www.python-httpx.org/exceptions/"
_AIOHTTP = "https://docs.aiohttp.org/en/stable/client_reference.html#client-exceptions"
_GOOGLE_AUTH = "https://googleapis.dev/python/google-auth/latest/reference/google.auth.exceptions.html"

_DENIED = (400, 401, 403)
_REFUSED = (400, 403, 404)

HTTP_RULES: Final = (
    # What ErrorInfo says is meant for programs, whatever the status.
    HttpRule(
        "http.info.suspended",
        Reason.ACCOUNT_SUSPENDED,
        _ERROR_REASONS,
        infos=("CONSUMER_SUSPENDED", "GCP_SUSPENDED", "USER_BLOCKED_BY_ADMIN", "TOS_VIOLATION"),
    ),
    HttpRule(
        "http.info.auth",
        Reason.AUTH_INVALID,
        _ERROR_REASONS,
        infos=(
            "API_KEY_INVALID",
            "API_KEY_EXPIRED",
            "ACCESS_TOKEN_EXPIRED",
            "ACCESS_TOKEN_TYPE_UNSUPPORTED",
            "ACCOUNT_STATE_INVALID",
            "CREDENTIALS_MISSING",
            "SESSION_COOKIE_INVALID",
        ),
    ),
    HttpRule(
        "http.info.billing",
        Reason.BILLING_REQUIRED,
        _ERROR_REASONS,
        infos=("BILLING_DISABLED", "UREQ_PROJECT_BILLING_NOT_FOUND", "BILLING_NOT_ENABLED"),
    ),
    HttpRule(
        "http.info.location",
        Reason.LOCATION_UNSUPPORTED,
        _ERROR_REASONS,
        infos=("LOCATION_POLICY_VIOLATED", "LOCATION_TAX_POLICY_VIOLATED", "UNSUPPORTED_LOCATION"),
    ),
    HttpRule(
        "http.info.permission",
        Reason.PERMISSION_DENIED,
        _ERROR_REASONS,
        infos=(
            "SERVICE_DISABLED",
            "SERVICE_NOT_VISIBLE",
            "CONSUMER_INVALID",
            "RESOURCE_PROJECT_INVALID",
            "USER_PROJECT_DENIED",
            "API_KEY_SERVICE_BLOCKED",
            "API_KEY_HTTP_REFERRER_BLOCKED",
            "API_KEY_IP_ADDRESS_BLOCKED",
            "API_KEY_ANDROID_APP_BLOCKED",
            "API_KEY_IOS_APP_BLOCKED",
            "ACCESS_TOKEN_SCOPE_INSUFFICIENT",
            "IAM_PERMISSION_DENIED",
            "SECURITY_POLICY_VIOLATED",
            "ORG_RESTRICTION_VIOLATION",
            "ORG_RESTRICTION_HEADER_INVALID",
            "RESOURCE_USAGE_RESTRICTION_VIOLATED",
            "LOCATION_ORG_POLICY_VIOLATED",
        ),
    ),
    # Several quotas can be violated at once: a limit of 0 wins, then the day's.
    HttpRule(
        "http.429.limit_zero",
        Reason.NO_QUOTA,
        "https://github.com/continuedev/continue/issues/9570",
        statuses=(429,),
        quota="zero",
    ),
    HttpRule(
        "http.429.billing",
        Reason.BILLING_REQUIRED,
        "https://github.com/dyad-sh/dyad/issues/3626",
        statuses=(429,),
        text=r"\b(prepa(y|id)\w* credit|credits? (is|are|have been|has been) (deleted|depleted|exhausted|used up)"
        r"|out of credits|spend(ing)? (cap|limit)|billing (account )?(is|has been) (not |dis)"
        r"|requires billing|enable billing|billing to be enabled)",
    ),
    HttpRule(
        "http.429.no_tier",
        Reason.NO_QUOTA,
        "https://github.com/ai-christianson/RA.Aid/issues/182",
        statuses=(429,),
        text=r"(n.?t|\bnot) have (a |any )?free (quota )?tier\b|\bno free (quota )?tier\b"
        r"|\bnot (available|offered|included) (in|on|for|with) (the |your )?free (quota |usage )?tier\b",
    ),
    HttpRule("http.429.per_day", Reason.DAILY_QUOTA_EXHAUSTED, _RATE_LIMITS, statuses=(429,), quota="day"),
    HttpRule("http.429.quota", Reason.RATE_LIMITED, _RATE_LIMITS, statuses=(429,), quota="named"),
    HttpRule(
        "http.429", Reason.RATE_LIMITED, "https://github.com/googleapis/python-genai/issues/2065", statuses=(429,)
    ),
    HttpRule(
        "http.info.rate_limit",
        Reason.RATE_LIMITED,
        _ERROR_REASONS,
        infos=("RATE_LIMIT_EXCEEDED", "RESOURCE_QUOTA_EXCEEDED", "rateLimitExceeded", "userRateLimitExceeded"),
    ),
    # Statuses that need no further evidence.
    HttpRule(
        "http.401",
        Reason.AUTH_INVALID,
        "https://github.com/musistudio/claude-code-router/issues/1011",
        statuses=(401,),
    ),
    HttpRule("http.402", Reason.BILLING_REQUIRED, f"{_RFC_9110}#section-15.5.3", statuses=(402,)),
    HttpRule("http.407", Reason.CLIENT_FAULT, f"{_RFC_9110}#section-15.5.8", statuses=(407,)),
    HttpRule("http.408", Reason.TIMEOUT, f"{_RFC_9110}#section-15.5.9", statuses=(408,)),
    HttpRule("http.409.exists", Reason.INVALID_REQUEST, _GRPC, statuses=(409,), canonical=("ALREADY_EXISTS",)),
    HttpRule("http.409", Reason.CANCELLED, _GRPC, statuses=(409,)),
    HttpRule("http.413", Reason.INPUT_TOO_LARGE, f"{_RFC_9110}#section-15.5.14", statuses=(413, 414)),
    HttpRule("http.451", Reason.LOCATION_UNSUPPORTED, "https://www.rfc-editor.org/rfc/rfc7725", statuses=(451,)),
    HttpRule(
        "http.499",
        Reason.CANCELLED,
        "https://github.com/NoeFabris/opencode-antigravity-auth/issues/508",
        statuses=(499,),
    ),
    HttpRule("http.500", Reason.SERVER_ERROR, _TROUBLESHOOTING, statuses=(500, 502, 520, 521, 522, 523)),
    HttpRule("http.501", Reason.INVALID_REQUEST, _GRPC, statuses=(501,)),
    HttpRule("http.503", Reason.OVERLOADED, _TROUBLESHOOTING, statuses=(503, 529)),
    HttpRule("http.504", Reason.TIMEOUT, _TROUBLESHOOTING, statuses=(504, 524)),
    # 400, 403 and 404 stand for many causes, and most come without details: here the wording decides.
    HttpRule(
        "http.400.model_name",
        Reason.MODEL_NOT_FOUND,
        _TROUBLESHOOTING,
        statuses=(400,),
        text=r"^\W*(GenerateContentRequest\.model\b|unexpected model name|invalid model name)",
    ),
    HttpRule(
        "http.400.names_a_field",
        Reason.INVALID_REQUEST,
        "https://github.com/hexdocom/lemonai/issues/54",
        statuses=(400,),
        text=r"^\W*(invalid (json|value|argument|field)|unknown name|request contains an invalid argument|proto field"
        r"|[a-z]+request\.|(unable to submit request because )?(the )?(specified |input )?schema\b"
        r"|\w+(\.|\[)\w*[^:]{0,80}: )",
    ),
    HttpRule(
        "http.auth_wording",
        Reason.AUTH_INVALID,
        "https://github.com/googleapis/python-genai/issues/1764",
        statuses=_REFUSED,
        text=r"\bapi[ _-]?keys?\b[^.]{0,60}\b(not valid|invalid|expired|not found|leaked|missing|revoked|deleted"
        r"|disabled"
        r"|compromised|not supported|required|not exist)|\b(valid|renew the|an|missing|no|invalid"
        r"|leaked) api[ _-]?key\b"
        r"|unregistered callers|multiple authentication credentials|authentication credentials?\b|unauthenticated"
        r"|(access|oauth2?|bearer) token\b[^.]{0,40}\b(invalid|expired|revoked|missing)",
    ),
    HttpRule(
        "http.billing_wording",
        Reason.BILLING_REQUIRED,
        "https://github.com/google-gemini/cookbook/issues/135",
        statuses=_REFUSED,
        text=r"\b(enable|enabling|requires?|without a|link a|set up|no) billing\b|billing\b[^.]{0,60}\b(disabled|not "
        r"enabled|not found|not active|inactive|closed|suspended|required|enabled|delinquent|past due)"
        r"|\bfree tier is not available"
        r"|\b(paid|billed) (tier|plan|users?|account|project)|credits? (is|are|have been|has been) (depleted|exhausted"
        r"|used up)|prepa(y|id)\w* credit|spend(ing)? (cap|limit)|dunning",
    ),
    HttpRule(
        "http.suspended_wording",
        Reason.ACCOUNT_SUSPENDED,
        "https://github.com/google-gemini/gemini-cli/issues/19501",
        statuses=_REFUSED,
        text=r"\b(has|have) been (suspended|banned|restricted|terminated)|\b(is|was) (suspended|banned)\b"
        r"|violat\w+ (of )?(the |our |google'?s? )?(terms|prohibited use|acceptable use|policies)"
        r"|denied access|(account|project) (has been|is|was) (disabled|deactivated|limited|blocked)|abus(e|ive)",
    ),
    HttpRule(
        "http.location_wording",
        Reason.LOCATION_UNSUPPORTED,
        "https://github.com/poenl/gemini-api/issues/4",
        statuses=_REFUSED,
        text=r"\b(location|country|region|territory)\b[^.]{0,30}\bnot (supported|available|allowed"
        r"|permitted) (for|in|to|by)"
        r"|\bnot (supported|available) in your (country|region|location|territory)"
        r"|\b(user|your) (location|country|region)\b[^.]{0,30}\bnot\b|\bunsupported (user )?(location|country|region)",
    ),
    HttpRule(
        "http.not_ready",
        Reason.RESOURCE_NOT_READY,
        "https://github.com/home-assistant/core/issues/140182",
        statuses=(400, 403, 404, 409, 412),
        text=r"\bnot (in an |in the )?active\b|\b(still|being|currently) (being )?(process|provision|upload|import)"
        r"|\bin (the )?processing state|\bis processing\b|\bnot (yet )?(ready|finished processing|been processed)\b",
    ),
    HttpRule(
        "http.storage_permission",
        Reason.PERMISSION_DENIED,
        "https://cloud.google.com/storage/docs/access-control/iam-permissions",
        statuses=(400, 403),
        text=r"\bstorage\.objects\.|service (account|agent)\b[^.]{0,120}\b(not have|lacks|permission)",
    ),
    HttpRule(
        "http.resource_missing",
        Reason.RESOURCE_MISSING,
        "https://github.com/googleapis/python-genai/issues/1218",
        statuses=(400, 403, 404, 410),
        text=r"\b(files?|files/\S+|cached ?contents?|cached ?contents?/\S+|cache( content)?|interactions?|operations?"
        r"|corpus|corpora|file ?search ?stores?|documents?|uploads?|batch(es)?|stored (result|response|interaction)s?"
        r"|gs://\S+|objects?|blobs?|sessions?)\b"
        r"[^.]{0,120}\b((not|n't) (yet )?(exist|found|be found|be located)|expired|deleted|no longer|not_found"
        r"|is gone|missing)"
        r"|\bnot found: (cached content|file|interaction|operation)"
        r"|\b(cannot|can't|could not|unable to|failed to) (find|locate|access|retrieve)\b[^.]{0,40}"
        r"\b(file|cache|object|interaction)|url_error-error_not_found",
    ),
    HttpRule(
        "http.400.too_large",
        Reason.INPUT_TOO_LARGE,
        "https://github.com/google-gemini/gemini-cli/issues/4231",
        statuses=(400, 422),
        text=r"\binput( or output)? token counts?\b[^.]{0,40}\b(more|greater|larger|higher) than\b"
        r"|^(?!.*(output[ _]?tokens?|thinking|nesting|depth|schema|declarations))"
        r"(.*\b(tokens?|size|payload|bytes|pages?|length|duration|images?|videos?|audio|documents?|prompt|text"
        r"|input|contents?"
        r"|context|files?|body)\b.*\b(exceed\w*|(too|so) (large|long|big|many)|over the limit|larger than|longer than"
        r"|only supports? up to|at most|maximum (of|allowed|number)|limit of)"
        r"|.*\b(exceed\w*|too (large|long|big|many)|larger than|longer than)\b.*\b(tokens?|size|payload|bytes|pages?"
        r"|context (window|length)|input|images?|documents?|files?))",
    ),
    HttpRule(
        "http.model_wording",
        Reason.MODEL_NOT_FOUND,
        "https://github.com/wwardaww/gnome-gemini-ai/issues/22",
        statuses=_REFUSED,
        text=r"\b(models?|model version|models/\S+|\S*gemini-\S+"
        r"|gemini \d\S*( \w+){0,3}?)[^.]{0,160}\b(not (be )?found|(not|n't) exist"
        r"|not servable|retired|deprecated|shut ?down|discontinued|no longer (available|supported|served)"
        r"|not available|not supported (for|in|by) (the )?(api|region|location|generate|this|your|predict)"
        r"|not supported\W*$|no access|not have access)"
        r"|not allowed to use publisher model|\b(unknown|unsupported|invalid|no such) model\b",
    ),
    HttpRule(
        "http.400.prompt_refused",
        Reason.PROMPT_BLOCKED,
        "https://cloud.google.com/vertex-ai/generative-ai/docs/image/responsible-ai-imagen",
        statuses=(400, 422),
        text=r"\bprompt\b[^.]{0,40}\b(could not be submitted|(was|is|has been) (blocked|flagged|rejected)"
        r"|contains sensitive|violates)|responsible ai|model armor|(blocked|flagged|filtered) (by|due to"
        r"|for) \w*\s?safety",
    ),
    HttpRule("http.400", Reason.INVALID_REQUEST, _TROUBLESHOOTING, statuses=(400, 405, 406, 411, 412, 415, 422, 431)),
    HttpRule(
        "http.403",
        Reason.PERMISSION_DENIED,
        "https://github.com/google-gemini/gemini-cli/issues/5589",
        statuses=(403,),
    ),
    HttpRule("http.404", Reason.MODEL_NOT_FOUND, _TROUBLESHOOTING, statuses=(404,)),
    HttpRule("http.410", Reason.RESOURCE_MISSING, f"{_RFC_9110}#section-15.5.11", statuses=(410,)),
    HttpRule("http.424", Reason.SERVER_ERROR, "https://www.rfc-editor.org/rfc/rfc4918#section-11.4", statuses=(424,)),
    HttpRule("http.unlisted", Reason.UNCLASSIFIED, _RFC_9110),
)

_TRANSPORT = (
    "httpx.TransportError",
    "httpx.ConnectError",
    "httpx.NetworkError",
    "httpx.ProxyError",
    "httpcore.ConnectError",
    "aiohttp.ClientConnectionError",
    "aiohttp.ClientConnectorError",
    "aiohttp.ClientConnectorSSLError",
    "aiohttp.ClientSSLError",
    "requests.ConnectionError",
    "requests.SSLError",
    "urllib3.HTTPError",
    "urllib3.SSLError",
    "urllib3.MaxRetryError",
    "urllib.URLError",
    "ssl.SSLError",
    "google.auth.TransportError",
)

_PYDANTIC = ("pydantic_core.ValidationError", "pydantic.ValidationError")
# The SDK's models that a caller fills for a request, and those of its responses; a test looks them up in the SDK. Left
# out are names that a caller may well give a model of its own for an answer, such as File, Image and Transcription.
REQUEST_CLASSES: Final = (
    "AutomaticFunctionCallingConfig", "BatchJobSource", "Blob", "CodeExecutionResult", "ComputeTokensConfig",
    "ComputerUse", "Content", "CountTokensConfig", "CreateBatchJobConfig", "CreateCachedContentConfig",
    "CreateFileConfig", "DownloadFileConfig", "EditImageConfig", "EmbedContentConfig", "ExecutableCode", "FileData",
    "FileSearch", "FunctionCall", "FunctionCallingConfig", "FunctionDeclaration", "FunctionResponse",
    "FunctionResponseBlob", "FunctionResponseFileData", "FunctionResponsePart", "GenerateContentConfig",
    "GenerateImagesConfig", "GenerateVideosConfig", "GenerationConfig", "GoogleMaps", "GoogleSearch",
    "GoogleSearchRetrieval", "HttpOptions", "HttpRetryOptions", "ImageConfig", "InlinedRequest", "LiveConnectConfig",
    "ModelArmorConfig", "ModelSelectionConfig", "MultiSpeakerVoiceConfig", "Part", "PartMediaResolution",
    "PrebuiltVoiceConfig", "RetrievalConfig", "SafetySetting", "Schema", "SpeakerVoiceConfig", "SpeechConfig",
    "ThinkingConfig", "Tool", "ToolCodeExecution", "ToolConfig", "UploadFileConfig", "UrlContext", "VideoMetadata",
    "VoiceConfig",
)  # fmt: skip
RESPONSE_CLASSES: Final = (
    "BatchJob", "CachedContent", "ComputeTokensResponse", "CountTokensResponse", "CreateFileResponse",
    "EditImageResponse", "EmbedContentResponse", "GenerateContentResponse", "GenerateImagesResponse",
    "GenerateVideosOperation", "GenerateVideosResponse", "HttpResponse", "InlinedResponse", "ListBatchJobsResponse",
    "ListCachedContentsResponse", "ListFilesResponse", "ListModelsResponse", "UpscaleImageResponse",
)  # fmt: skip
_CHANNEL = (
    "google.api_core.ServiceUnavailable",
    "google.api_core.RetryError",
    "grpc.RpcError",
    "grpc.AioRpcError",
    "grpc._InactiveRpcError",
    "grpc._MultiThreadedRendezvous",
)
# Raised for whatever was no HTTP answer, so that what they were raised for is looked at first.
VAGUE: Final = ("openai.APIConnectionError", "litellm.APIConnectionError")
_LITELLM = "https://docs.litellm.ai/docs/exception_mapping"

# These say more than the HTTP or gRPC status that comes with them: the client made it up.
CLIENT_RULES: Final = (
    ExceptionRule(
        "client.channel",
        Reason.NETWORK,
        "https://github.com/google/generative-ai-docs/issues/314",
        _CHANNEL,
        text=r"^(timeout of [\d.]+s exceeded, last exception: )?(503 )?"
        r"(failed to connect to (all addresses|remote host)|(connection .{0,40}|tcp )handshake|dns resolution failed"
        r"|name resolution failure|socket closed|(http2 )?.{0,40}\bgoaway\b|connection reset by peer|recvmsg:|sendmsg:"
        r"|end of tcp stream|stream removed|keepalive watchdog timeout|ping timeout|transport closed)",
    ),
    ExceptionRule(
        "client.timeout",
        Reason.TIMEOUT,
        _LITELLM,
        ("openai.APITimeoutError", "litellm.Timeout", "litellm.APITimeoutError"),
    ),
    ExceptionRule(
        "client.connection",
        Reason.NETWORK,
        "https://github.com/BerriAI/litellm/issues/12100",
        VAGUE,
    ),
    ExceptionRule("client.context_window", Reason.INPUT_TOO_LARGE, _LITELLM, ("litellm.ContextWindowExceededError",)),
)

EXCEPTION_RULES: Final = (
    # This process is at fault; no request went out.
    ExceptionRule(
        "exception.certificate",
        Reason.CLIENT_FAULT,
        "https://github.com/googleapis/python-genai/issues/1503",
        (
            "ssl.SSLCertVerificationError",
            "ssl.CertificateError",
            "aiohttp.ClientConnectorCertificateError",
            "aiohttp.ServerFingerprintMismatch",
        ),
    ),
    ExceptionRule(
        "exception.certificate_wording",
        Reason.CLIENT_FAULT,
        "https://github.com/googleapis/python-genai/issues/1503",
        (*_TRANSPORT, "google.auth.RefreshError"),
        text=r"CERTIFICATE_VERIFY_FAILED|certificate verify failed|hostname mismatch|self[- ]signed certificate",
    ),
    ExceptionRule(
        "exception.proxy_auth",
        Reason.CLIENT_FAULT,
        f"{_RFC_9110}#section-15.5.8",
        ("httpx.ProxyError", "httpcore.ProxyError", "aiohttp.ClientHttpProxyError", *_TRANSPORT),
        text=r"\b407\b|proxy authentication required",
    ),
    ExceptionRule(
        "exception.credentials_missing",
        Reason.CLIENT_FAULT,
        "https://github.com/apurvsinghgautam/robin/issues/52",
        (
            "google.auth.DefaultCredentialsError",
            "google.auth.MalformedError",
            "google.auth.MutualTLSChannelError",
            "google.auth.ClientCertError",
            "google.auth.InvalidResource",
            "google.auth.InvalidOperation",
            "google.auth.InvalidValue",
            "google.auth.InvalidType",
        ),
    ),
    ExceptionRule(
        "exception.bad_url",
        Reason.CLIENT_FAULT,
        _HTTPX,
        (
            "httpx.UnsupportedProtocol",
            "httpx.InvalidURL",
            "httpx.LocalProtocolError",
            "httpx.TooManyRedirects",
            "httpcore.UnsupportedProtocol",
            "httpcore.LocalProtocolError",
            "h11.LocalProtocolError",
            "aiohttp.InvalidURL",
            "aiohttp.InvalidUrlClientError",
            "aiohttp.NonHttpUrlClientError",
            "aiohttp.TooManyRedirects",
            "requests.MissingSchema",
            "requests.InvalidSchema",
            "requests.InvalidURL",
            "requests.InvalidHeader",
            "requests.TooManyRedirects",
            "urllib3.LocationParseError",
            "urllib3.LocationValueError",
            "urllib3.URLSchemeUnknown",
            "urllib3.InvalidHeader",
            "http.InvalidURL",
        ),
    ),
    ExceptionRule(
        "exception.key_text",
        Reason.CLIENT_FAULT,
        f"{_RFC_9110}#section-5.5",
        ("builtins.UnicodeEncodeError",),
        text=r"^'?(ascii|latin-?1|iso-?8859-?1)\b",
    ),
    ExceptionRule(
        "exception.key_text",
        Reason.CLIENT_FAULT,
        f"{_RFC_9110}#section-5.5",
        ("builtins.ValueError", "builtins.TypeError"),
        text=r"^(newline|carriage return|illegal|invalid|forbidden)\b.{0,60}\bheader|^header (value|name|part)",
    ),
    ExceptionRule(
        "exception.client_setup",
        Reason.CLIENT_FAULT,
        _SDK_CLIENT,
        ("builtins.ValueError", "builtins.RuntimeError"),
        text=r"^(no api key was provided|missing key inputs argument|project or api key must be set"
        r"|project(/| and )location|could not resolve (project|api token)|credentials and api key are mutually"
        r"|(project/location and|gemini api does not support)|base.url must be set|invalid http_options"
        r"|request headers must be set|api.key (must|is)|enterprise and vertexai flags|.{0,60}\bapi.key\b.{0,40}\b"
        r"(required|missing|not set|not provided|must be (set|provided)))",
    ),
    ExceptionRule(
        "exception.client_closed",
        Reason.CLIENT_FAULT,
        _HTTPX,
        ("builtins.RuntimeError", "httpx.StreamError", "httpx.ClosedResourceError"),
        text=r"^(cannot send a request, as the client has been closed|session is closed|connector is closed"
        r"|event loop is closed|cannot (reopen|open) a client|the client is closed|.{0,200}different (event )?loop"
        r"|cannot schedule new futures|no running event loop)",
    ),
    ExceptionRule(
        "exception.no_thread",
        Reason.CLIENT_FAULT,
        "https://github.com/python/cpython/blob/main/Modules/_threadmodule.c",
        ("builtins.RuntimeError",),
        text=r"^can't (start|create) new thread",
    ),
    ExceptionRule(
        "exception.ca_store",
        Reason.CLIENT_FAULT,
        "https://requests.readthedocs.io/en/latest/user/advanced/#ssl-cert-verification",
        ("builtins.OSError",),
        text=r"^could not find (a suitable|the) TLS",
    ),
    ExceptionRule("exception.import", Reason.CLIENT_FAULT, _PYTHON, ("builtins.ImportError",)),
    ExceptionRule(
        "exception.response_model",
        Reason.CLIENT_FAULT,
        _SDK_TYPES,
        _PYDANTIC,
        text=rf"^\d+ validation errors? for ({'|'.join(RESPONSE_CLASSES)})(?!\w)",
    ),
    # The SDK refuses the request before it is sent.
    ExceptionRule(
        "exception.request_model",
        Reason.INVALID_REQUEST,
        _SDK_TYPES,
        _PYDANTIC,
        text=rf"^\d+ validation errors? for (_\w+Parameters|{'|'.join(REQUEST_CLASSES)})(?!\w)",
    ),
    # Any other model is the caller's own, and what it refuses is the answer.
    ExceptionRule(
        "exception.answer_model",
        Reason.MALFORMED_ANSWER,
        "https://github.com/567-labs/instructor/issues/2232",
        _PYDANTIC,
    ),
    ExceptionRule(
        "exception.sdk_refuses",
        Reason.INVALID_REQUEST,
        "https://github.com/googleapis/python-genai/blob/main/google/genai/_transformers.py",
        ("builtins.ValueError", "builtins.TypeError"),
        text=r"^([\w.' ]{1,80}\bis only supported in|\w+ parameter is not supported|contents? (parts? )?(are"
        r"|is) required"
        r"|content parts? (are|is) required|model is required|invalid model parameter|unsupported (content|schema|mime"
        r"|blob|function|speech|source|destination|collection)|could not (parse|convert) input|unknown mime type"
        r"|file uri and mime_type are required|message must be a valid part|accessing the raw http response"
        r"|tool .{1,120} is already defined|role must be user or model|additionalproperties is|literal values must be"
        r"|running in streaming mode|this method is only supported|exactly one of|file name is required"
        r"|invalid (batch job|file) name|source and prompt|mcp|object of type .{1,120} is not json serializable"
        r"|out of range float values|circular reference detected|keys must be str)",
    ),
    ExceptionRule(
        "exception.sdk_refuses_type",
        Reason.INVALID_REQUEST,
        "https://github.com/googleapis/python-genai/blob/main/google/genai/errors.py",
        ("google.genai.UnsupportedFunctionError",),
    ),
    # Of a payload that was taken over from elsewhere.
    ExceptionRule(
        "exception.payload",
        Reason.INVALID_REQUEST,
        "https://googleapis.github.io/python-genai/genai.html#genai.models.Models.generate_content",
        ("parked.InvalidJob",),
    ),
    ExceptionRule(
        "exception.prompt_text",
        Reason.INVALID_REQUEST,
        _PYTHON,
        ("builtins.UnicodeEncodeError",),
        text=r"surrogates not allowed",
    ),
    # The token endpoint: it answered and refused, or it could not be reached.
    ExceptionRule("exception.auth_transport", Reason.NETWORK, _GOOGLE_AUTH, ("google.auth.TransportError",)),
    ExceptionRule("exception.auth_timeout", Reason.NETWORK, _GOOGLE_AUTH, ("google.auth.TimeoutError",)),
    ExceptionRule(
        "exception.impersonation",
        Reason.PERMISSION_DENIED,
        _GOOGLE_AUTH,
        ("google.auth.RefreshError",),
        text=r"iam\.serviceAccounts\.|iam_permission_denied|PERMISSION_DENIED|\"code\": 403",
    ),
    ExceptionRule(
        "exception.auth_refused",
        Reason.AUTH_INVALID,
        "https://github.com/googleapis/google-cloud-python/issues/10645",
        ("google.auth.RefreshError",),
        text=r"invalid_(grant|client|scope|rapt)|(unauthorized|deleted|disabled)_client|access_denied"
        r"|expired or revoked"
        r"|has been deleted|reauth",
    ),
    ExceptionRule(
        "exception.auth_unreachable",
        Reason.NETWORK,
        _GOOGLE_AUTH,
        ("google.auth.RefreshError",),
        text=r"max retries exceeded|failed to retrieve http|timed? ?out|unavailable|internal_failure|server_error"
        r"|temporar|connection|network|name resolution|bad gateway|\b50[0234]\b",
    ),
    ExceptionRule(
        "exception.auth",
        Reason.AUTH_INVALID,
        _GOOGLE_AUTH,
        (
            "google.auth.GoogleAuthError",
            "google.auth.RefreshError",
            "google.auth.ReauthFailError",
            "google.auth.UserAccessTokenError",
            "google.auth.OAuthError",
        ),
    ),
    # The call was given up by us.
    ExceptionRule(
        "exception.cancelled",
        Reason.CANCELLED,
        "https://docs.python.org/3/library/asyncio-exceptions.html",
        (
            "asyncio.CancelledError",
            "concurrent.CancelledError",
            "builtins.KeyboardInterrupt",
            "builtins.SystemExit",
            "builtins.GeneratorExit",
            "trio.Cancelled",
            "google.api_core.Cancelled",
        ),
    ),
    # A time-out while connecting is the network's; while waiting for the answer it is a timeout.
    ExceptionRule(
        "exception.connect_timeout",
        Reason.NETWORK,
        _HTTPX,
        (
            "httpx.ConnectTimeout",
            "httpcore.ConnectTimeout",
            "aiohttp.ConnectionTimeoutError",
            "requests.ConnectTimeout",
            "urllib3.ConnectTimeoutError",
            "urllib3.NewConnectionError",
            "urllib3.NameResolutionError",
        ),
    ),
    ExceptionRule(
        "exception.connect_timeout_wording",
        Reason.NETWORK,
        _PYTHON,
        ("builtins.TimeoutError", "aiohttp.ServerTimeoutError"),
        text=r"\[Errno (60|110)\]|\[WinError 10060\]|connect call failed|connection timeout to host|handshake",
    ),
    ExceptionRule(
        "exception.timeout",
        Reason.TIMEOUT,
        "https://github.com/googleapis/python-genai/issues/2337",
        (
            "httpx.TimeoutException",
            "httpx.ReadTimeout",
            "httpx.WriteTimeout",
            "httpx.PoolTimeout",
            "httpcore.TimeoutException",
            "httpcore.ReadTimeout",
            "httpcore.WriteTimeout",
            "httpcore.PoolTimeout",
            "aiohttp.ServerTimeoutError",
            "aiohttp.SocketTimeoutError",
            "requests.Timeout",
            "requests.ReadTimeout",
            "urllib3.TimeoutError",
            "urllib3.ReadTimeoutError",
            "builtins.TimeoutError",
            "asyncio.TimeoutError",
            "concurrent.TimeoutError",
            "socket.timeout",
            "google.api_core.RetryError",
        ),
    ),
    # An answer came and can't be read.
    ExceptionRule(
        "exception.body_not_json",
        Reason.BAD_RESPONSE_BODY,
        "https://github.com/googleapis/python-genai/pull/1364",
        (
            "json.JSONDecodeError",
            "requests.JSONDecodeError",
            "simplejson.JSONDecodeError",
            "google.genai.UnknownApiResponseError",
            "builtins.UnicodeDecodeError",
            "aiohttp.ContentTypeError",
        ),
    ),
    ExceptionRule(
        "exception.body_encoding",
        Reason.BAD_RESPONSE_BODY,
        _HTTPX,
        (
            "httpx.DecodingError",
            "requests.ContentDecodingError",
            "urllib3.DecodeError",
            "zlib.error",
            "aiohttp.ContentEncodingError",
        ),
    ),
    ExceptionRule(
        "exception.call_arguments",
        Reason.MALFORMED_ANSWER,
        "https://github.com/googleapis/python-genai/blob/main/google/genai/errors.py",
        ("google.genai.UnknownFunctionCallArgumentError",),
    ),
    ExceptionRule(
        "exception.network",
        Reason.NETWORK,
        "https://github.com/googleapis/python-genai/issues/2176",
        (
            *_TRANSPORT,
            "httpx.ReadError",
            "httpx.WriteError",
            "httpx.CloseError",
            "httpx.ProtocolError",
            "httpx.RemoteProtocolError",
            "httpx.RequestError",
            "httpcore.NetworkError",
            "httpcore.ReadError",
            "httpcore.WriteError",
            "httpcore.ProtocolError",
            "httpcore.RemoteProtocolError",
            "httpcore.ProxyError",
            "httpcore.ConnectionNotAvailable",
            "h11.RemoteProtocolError",
            "h2.ProtocolError",
            "aiohttp.ClientConnectorDNSError",
            "aiohttp.ClientOSError",
            "aiohttp.ServerDisconnectedError",
            "aiohttp.ServerConnectionError",
            "aiohttp.ClientPayloadError",
            "aiohttp.ClientConnectionResetError",
            "aiohttp.ClientProxyConnectionError",
            "aiohttp.ClientHttpProxyError",
            "aiohttp.PayloadEncodingError",
            "aiohttp.TransferEncodingError",
            "aiohttp.ContentLengthError",
            "aiohttp.ClientError",
            "requests.ChunkedEncodingError",
            "requests.ProxyError",
            "requests.RetryError",
            "urllib3.ProtocolError",
            "urllib3.IncompleteRead",
            "urllib3.ProxyError",
            "http.IncompleteRead",
            "http.RemoteDisconnected",
            "http.BadStatusLine",
            "http.HTTPException",
            "builtins.ConnectionError",
            "builtins.ConnectionResetError",
            "builtins.ConnectionRefusedError",
            "builtins.ConnectionAbortedError",
            "builtins.BrokenPipeError",
            "socket.gaierror",
            "socket.herror",
            "ssl.SSLEOFError",
            "ssl.SSLZeroReturnError",
            "ssl.SSLSyscallError",
            "anyio.BrokenResourceError",
            "anyio.ClosedResourceError",
            "anyio.EndOfStream",
            "asyncio.IncompleteReadError",
            "websockets.ConnectionClosed",
            "websockets.ConnectionClosedError",
        ),
    ),
    ExceptionRule(
        "exception.network_errno",
        Reason.NETWORK,
        "https://docs.python.org/3/library/errno.html",
        ("builtins.OSError",),
        text=r"^\[Errno (-\d+|8|11001|51|54|60|61|64|65|100|101|103|104|110|111|112|113)\]|network is unreachable"
        r"|no route to host|name or service not known|temporary failure in name resolution"
        r"|multiple exceptions: .{0,80}connect call failed",
    ),
    # Of a blocked prompt or answer whose reason the exception doesn't name.
    ExceptionRule(
        "exception.prompt_blocked",
        Reason.PROMPT_BLOCKED,
        "https://github.com/FoundationAgents/MetaGPT/issues/1821",
        ("google.generativeai.BlockedPromptException",),
    ),
    ExceptionRule(
        "exception.answer_blocked",
        Reason.ANSWER_BLOCKED,
        "https://github.com/googleapis/python-aiplatform/blob/main/vertexai/generative_models/_generative_models.py",
        ("vertexai.ResponseBlockedError",),
    ),
    ExceptionRule(
        "exception.continuation",
        Reason.STREAM_INTERRUPTED,
        "https://github.com/googleapis/python-genai/blob/main/google/genai/errors.py",
        ("google.genai.ContinuationInterruptedError",),
    ),
)
EXCEPTION_FALLBACK: Final = ShapeRule(
    "exception.unlisted",
    Reason.UNCLASSIFIED,
    "https://github.com/xtekky/gpt4free/pull/2341",
    "any other exception, also of the caller's own code: judge the response before reading from it",
)

BLOCK_RULES: Final = (
    ValueRule(
        "block.other",
        Reason.STOPPED_OTHER,
        "https://github.com/microsoft/eureka-ml-insights/pull/79",
        ("OTHER", "BLOCKED_REASON_UNSPECIFIED", "BLOCK_REASON_UNSPECIFIED"),
    ),
    ValueRule(
        "block.listed",
        Reason.PROMPT_BLOCKED,
        _SDK_TYPES,
        ("SAFETY", "BLOCKLIST", "PROHIBITED_CONTENT", "IMAGE_SAFETY", "MODEL_ARMOR", "JAILBREAK"),
    ),
    ValueRule("block.unlisted", Reason.PROMPT_BLOCKED, _SDK_TYPES, ()),
)

FINISH_RULES: Final = (
    ValueRule(
        "finish.max_tokens",
        Reason.ANSWER_TRUNCATED,
        "https://github.com/langchain-ai/langchain-google/issues/1020",
        ("MAX_TOKENS", "CONTINUATION"),
    ),
    ValueRule(
        "finish.content_filter",
        Reason.ANSWER_BLOCKED,
        "https://github.com/bespokelabsai/curator/issues/261",
        ("CONTENT_FILTER",),
    ),
    ValueRule(
        "finish.refusal",
        Reason.PROMPT_BLOCKED,
        "https://github.com/openai/openai-python/blob/main/src/openai/types/chat/chat_completion_message.py",
        ("REFUSAL",),
    ),
    ValueRule("finish.error", Reason.SERVER_ERROR, "https://openrouter.ai/docs/api-reference/errors", ("ERROR",)),
    ValueRule(
        "finish.filtered",
        Reason.ANSWER_BLOCKED,
        _SDK_TYPES,
        (
            "SAFETY",
            "PROHIBITED_CONTENT",
            "BLOCKLIST",
            "SPII",
            "LANGUAGE",
            "IMAGE_SAFETY",
            "IMAGE_PROHIBITED_CONTENT",
            "MODEL_ARMOR",
            "ESCALATION",
        ),
    ),
    ValueRule(
        "finish.recitation",
        Reason.RECITATION,
        "https://github.com/gbaptista/gemini-ai/issues/21",
        ("RECITATION", "IMAGE_RECITATION"),
    ),
    ValueRule(
        "finish.malformed",
        Reason.MALFORMED_ANSWER,
        "https://github.com/pydantic/pydantic-ai/issues/1687",
        ("MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS"),
    ),
    ValueRule("finish.thought_signature", Reason.INVALID_REQUEST, _SDK_TYPES, ("MISSING_THOUGHT_SIGNATURE",)),
    ValueRule("finish.account", Reason.ACCOUNT_SUSPENDED, _SDK_TYPES, ("PUP_LIMITED_DISABLED",)),
    ValueRule(
        "finish.other",
        Reason.STOPPED_OTHER,
        "https://github.com/LiveBench/LiveBench/pull/476",
        ("OTHER", "IMAGE_OTHER", "NO_IMAGE", "FINISH_REASON_UNSPECIFIED"),
    ),
    ValueRule("finish.unlisted", Reason.STOPPED_OTHER, _SDK_TYPES, ()),
)

_BATCH = "https://ai.google.dev/api/batch-api"
BATCH_STATE_RULES: Final = (
    ValueRule("batch.expired", Reason.TIMEOUT, "https://github.com/googleapis/python-genai/issues/2439", ("EXPIRED",)),
    ValueRule("batch.cancelled", Reason.CANCELLED, _BATCH, ("CANCELLED", "CANCELLING")),
    ValueRule("batch.no_result", Reason.MISSING_RESULT, _BATCH, ()),
)

SHAPE_RULES: Final = {
    rule.name: rule
    for rule in (
        ShapeRule("answer.no_body", Reason.EMPTY_ANSWER, "https://github.com/snailyp/gemini-balance/pull/347",
                  "HTTP 200 with an empty body, `null`, `{}` or `[]`"),
        ShapeRule("answer.not_json", Reason.BAD_RESPONSE_BODY, "https://github.com/googleapis/python-genai/pull/1364",
                  "HTTP 200 with a body that is no JSON object: HTML, cut off, not UTF-8"),
        ShapeRule("answer.no_candidates", Reason.EMPTY_ANSWER, "https://github.com/googleapis/python-genai/issues/626",
                  "no candidate or choice (or fewer than were asked for) and no block reason"),
        ShapeRule("answer.no_content", Reason.EMPTY_ANSWER, "https://github.com/BerriAI/litellm/issues/24442",
                  "STOP, but no part that is an answer: none, white space, thoughts only, no image or audio where only"
                  " that was asked for"),
        ShapeRule("answer.no_finish", Reason.STREAM_INTERRUPTED,
                  "https://github.com/strands-agents/sdk-typescript/issues/717",
                  "content, or a stream, without a finish reason"),
        ShapeRule("answer.not_continued", Reason.STREAM_INTERRUPTED, _SDK_TYPES,
                  "CONTINUATION at the end, though the request had automatic continuation on"),
        ShapeRule("answer.broken_json", Reason.MALFORMED_ANSWER,
                  "https://github.com/bobmatnyc/trusty-tools/issues/1241",
                  "STOP, but the JSON that was asked for doesn't parse"),
        ShapeRule("answer.repeats", Reason.REPETITION_LOOP, "https://github.com/google-gemini/cookbook/issues/1288",
                  "MAX_TOKENS, and the end of the text repeats one unit"),
        ShapeRule("value.empty", Reason.EMPTY_ANSWER,
                  "https://docs.python.org/3/library/stdtypes.html#truth-value-testing",
                  "a caller of one's own returned None, white space or an empty container"),
        ShapeRule("value.not_run", Reason.CLIENT_FAULT, "https://docs.python.org/3/reference/datamodel.html#coroutines",
                  "a caller of one's own returned what would still have to be run or read: a coroutine, a future, a"
                  " generator, a stream, a function"),
        ShapeRule("value.rejected", Reason.MALFORMED_ANSWER,
                  "https://docs.python.org/3/library/functions.html#callable",
                  "the pipeline's own check found fault with an answer that is otherwise a success"),
        ShapeRule("judge.failed", Reason.UNCLASSIFIED, "https://docs.python.org/3/reference/datamodel.html",
                  "the outcome could not be looked at: reading it raised an exception"),
    )
}  # fmt: skip
