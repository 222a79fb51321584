/* A program of the CUDA runtime: linked with one, as nvcc links programs, without any of NVIDIA's headers.
   It is compiled by the test that runs it, once for each major version.
   Usage: runtime version | fill | async | reset | capture | code | threads | share | errors */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

struct memory_handle { char bytes[64]; };
struct event_handle { char bytes[64]; };
struct extent { unsigned x, y, z; };

int cudaRuntimeGetVersion(int *), cudaGetDeviceCount(int *), cudaSetDevice(int), cudaGetDevice(int *);
int cudaGetDeviceProperties(void *, int), cudaDeviceReset(void), cudaDeviceSynchronize(void);
int cudaMalloc(void **, size_t), cudaFree(void *), cudaMemGetInfo(size_t *, size_t *);
int cudaMallocAsync(void **, size_t, void *), cudaFreeAsync(void *, void *), cudaMemcpy(void *, const void *, size_t, int);
int cudaMemcpyAsync(void *, const void *, size_t, int, void *), cudaMemset(void *, int, size_t), cudaMemsetAsync(void *, int, size_t, void *);
int cudaStreamCreate(void **), cudaStreamSynchronize(void *), cudaStreamDestroy(void *);
int cudaStreamIsCapturing(void *, int *), cudaStreamBeginCapture(void *, int), cudaStreamEndCapture(void *, void **);
int cudaGraphInstantiate(void **, void *, unsigned long long), cudaGraphLaunch(void *, void *);
int cudaGraphGetNodes(void *, void **, size_t *), cudaGraphExecDestroy(void *), cudaGraphDestroy(void *);
int cudaIpcGetMemHandle(struct memory_handle *, void *);
int cudaIpcOpenMemHandle(void **, struct memory_handle, unsigned), cudaIpcCloseMemHandle(void *);
int cudaEventCreateWithFlags(void **, unsigned), cudaEventRecord(void *, void *), cudaEventQuery(void *);
int cudaIpcGetEventHandle(struct event_handle *, void *), cudaIpcOpenEventHandle(void **, struct event_handle);
int cudaStreamWaitEvent(void *, void *, unsigned), cudaEventDestroy(void *);
int cudaGetLastError(void), cudaPeekAtLastError(void);
int cudaLaunchKernel(const void *, struct extent, struct extent, void **, size_t, void *);
int cudaFuncGetAttributes(void *, const void *), cudaMemcpyToSymbol(const void *, const void *, size_t, size_t, int);
int cudaGetSymbolSize(size_t *, const void *);
const char *cudaGetErrorName(int), *cudaGetErrorString(int);
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFatBinaryEnd(void **), __cudaUnregisterFatBinary(void **);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int);
unsigned __cudaPushCallConfiguration(struct extent, struct extent, size_t, void *);
int __cudaPopCallConfiguration(struct extent *, struct extent *, size_t *, void **);

/* What nobody expects to fail ends the program with the line and the error. */
#define MUST(call) must((call), #call)
static void must(int code, const char *call) {
	if (code == 0)
		return;
	printf("%s: %s (%s)\n", call, cudaGetErrorName(code), cudaGetErrorString(code));
	exit(1);
}

static size_t free_bytes(void) {
	size_t free, total;
	MUST(cudaMemGetInfo(&free, &total));
	return free;
}

/* Takes memory in pieces until one is refused, and says how much it got and what the refusal was. */
static void fill(int is_async) {
	size_t got = 0, free, total;
	void *piece, *pieces[4096];
	int count = 0, code;
	while (count < 4096) {
		code = is_async ? cudaMallocAsync(&piece, 32 * MIB, NULL) : cudaMalloc(&piece, 32 * MIB);
		if (code)
			break;
		pieces[count++] = piece;
		got += 32;
	}
	MUST(cudaMemGetInfo(&free, &total));
	int seen = cudaPeekAtLastError(), last = cudaGetLastError(), then = cudaGetLastError();
	printf("got %zu of %zu, free %zu, %s, seen %s, last %s, then %s\n", got, total / MIB, free / MIB,
	       cudaGetErrorName(code), cudaGetErrorName(seen), cudaGetErrorName(last), cudaGetErrorName(then));
	while (count)
		MUST(is_async ? cudaFreeAsync(pieces[--count], NULL) : cudaFree(pieces[--count]));
	MUST(cudaDeviceSynchronize());
	MUST(cudaMalloc(&piece, 1000 * MIB));
}

/* What a context held is free after a reset, and the device can be used again. */
static void reset(void) {
	void *memory;
	size_t before;
	MUST(cudaFree(NULL));
	before = free_bytes();
	for (int round = 0; round < 3; round++) {
		MUST(cudaMalloc(&memory, 1200 * MIB));
		printf("%d ", before - free_bytes() == 1200 * MIB);
		MUST(cudaDeviceReset());
		printf("%d ", free_bytes() == before);
	}
	printf("\n");
}

/* A bundle with one text, as nvcc packs it. */
static struct {
	uint32_t magic;
	uint16_t version, head;
	uint64_t bytes;
	uint16_t kind, entry_version;
	uint32_t entry_head;
	uint64_t entry_bytes, words[6];
	char text[256];
} bundle = {0xba55ed50, 1, 16, 64 + 256, 1, 0x101, 64, 256, {0},
            ".version 8.0\n.target sm_80\n.visible .global .align 4 .b8 table[4096];\n"
            ".visible .entry scale(.param .u64 a) { ret; }\n"};
static struct {
	int magic, version;
	void *data, *more;
} wrapper = {0x466243b1, 1, &bundle, NULL};
static char table_on_host[4096];

static void scale_on_host(void *memory) {
	struct extent grid, block;
	size_t shared;
	void *stream, *arguments[] = {&memory};
	MUST(__cudaPopCallConfiguration(&grid, &block, &shared, &stream));
	MUST(cudaLaunchKernel((const void *)scale_on_host, grid, block, arguments, shared, stream));
}

static void **registered(void) {
	void **handle = __cudaRegisterFatBinary(&wrapper);
	__cudaRegisterFunction(handle, (const char *)scale_on_host, "scale", "scale", -1, 0, 0, 0, 0, 0);
	__cudaRegisterVar(handle, table_on_host, "table", "table", 0, sizeof table_on_host, 0, 0);
	__cudaRegisterFatBinaryEnd(handle);
	return handle;
}

static void capture(void) {
	struct extent one = {1, 1, 1};
	void *stream, *graph, *executable, *from, *to, **handle = registered();
	size_t nodes = 0;
	int status = -1;
	char byte = 0;
	MUST(cudaMalloc(&from, MIB));
	MUST(cudaMalloc(&to, MIB));
	MUST(cudaMemset(to, 3, MIB));
	MUST(cudaStreamCreate(&stream));
	MUST(cudaStreamBeginCapture(stream, 2));
	MUST(cudaLaunchKernel((const void *)scale_on_host, one, one, NULL, 0, stream));
	MUST(cudaMemsetAsync(from, 7, MIB, stream));
	MUST(cudaMemcpyAsync(to, from, MIB, 3, stream));
	MUST(cudaStreamEndCapture(stream, &graph));
	MUST(cudaStreamIsCapturing(stream, &status));
	MUST(cudaGraphGetNodes(graph, NULL, &nodes));
	MUST(cudaMemcpy(&byte, to, 1, 2));
	printf("nodes %zu, still capturing %d, before %d, ", nodes, status, byte);
	MUST(cudaGraphInstantiate(&executable, graph, 0));
	MUST(cudaGraphLaunch(executable, stream));
	MUST(cudaStreamSynchronize(stream));
	MUST(cudaMemcpy(&byte, (char *)to + MIB - 1, 1, 2));
	printf("after %d\n", byte);
	MUST(cudaGraphExecDestroy(executable));
	MUST(cudaGraphDestroy(graph));
	MUST(cudaStreamDestroy(stream));
	__cudaUnregisterFatBinary(handle);
}

static void code(void) {
	struct extent one = {1, 1, 1}, block = {32, 1, 1};
	size_t bytes = 0;
	long long attributes[32];
	void *memory, **handle = registered();
	MUST(cudaMalloc(&memory, MIB));
	if (__cudaPushCallConfiguration(one, block, 0, NULL))
		exit(1);
	scale_on_host(memory);
	MUST(cudaDeviceSynchronize());
	MUST(cudaFuncGetAttributes(attributes, (const void *)scale_on_host));
	MUST(cudaGetSymbolSize(&bytes, table_on_host));
	MUST(cudaMemcpyToSymbol(table_on_host, table_on_host, 4096, 0, 1));
	printf("threads %d, table %zu, beyond %s, ", (int)attributes[3], bytes,
	       cudaGetErrorName(cudaMemcpyToSymbol(table_on_host, table_on_host, 4096, 1, 1)));
	/* The kernel comes back with the context. */
	MUST(cudaDeviceReset());
	if (__cudaPushCallConfiguration(one, block, 0, NULL))
		exit(1);
	scale_on_host(memory);
	__cudaUnregisterFatBinary(handle);
	printf("unregistered %s\n", cudaGetErrorName(cudaLaunchKernel((const void *)scale_on_host, one, block, NULL, 0, NULL)));
}

/* Two threads that start at once share one context; each has its own last error. */
static pthread_barrier_t together;
static void *in_thread(void *refused) {
	void *memory;
	pthread_barrier_wait(&together);
	MUST(cudaFree(NULL));
	MUST(cudaMalloc(&memory, 100 * MIB));
	if (refused)
		cudaMalloc(&memory, (size_t)1 << 50);
	pthread_barrier_wait(&together);
	return (void *)(intptr_t)cudaGetLastError();
}

static void threads(void) {
	pthread_t first, second;
	void *of_first, *of_second;
	pthread_barrier_init(&together, NULL, 2);
	pthread_create(&first, NULL, in_thread, &together);
	pthread_create(&second, NULL, in_thread, NULL);
	pthread_join(first, &of_first);
	pthread_join(second, &of_second);
	printf("last errors %s, %s, free %zu\n", cudaGetErrorName((intptr_t)of_first),
	       cudaGetErrorName((intptr_t)of_second), free_bytes() / MIB);
}

/* The memory of one process is in another, and counts once. */
static void share(void) {
	int to_child[2], to_parent[2];
	struct {
		struct memory_handle memory;
		struct event_handle event;
	} handle;
	char byte = 0, word;
	void *event;
	if (pipe(to_child) || pipe(to_parent))
		exit(1);
	if (fork() == 0) {
		void *memory;
		if (read(to_child[0], &handle, sizeof handle) != sizeof handle)
			_exit(1);
		MUST(cudaIpcOpenEventHandle(&event, handle.event));
		MUST(cudaStreamWaitEvent(NULL, event, 0));
		MUST(cudaIpcOpenMemHandle(&memory, handle.memory, 1));
		MUST(cudaMemcpy(&byte, memory, 1, 2));
		MUST(cudaMemset(memory, byte + 1, MIB));
		printf("child read %d, free %zu\n", byte, free_bytes() / MIB);
		fflush(stdout);
		MUST(cudaIpcCloseMemHandle(memory));
		MUST(cudaEventDestroy(event));
		_exit(write(to_parent[1], "", 1) != 1);
	}
	void *memory;
	MUST(cudaMalloc(&memory, 500 * MIB));
	MUST(cudaMemset(memory, 41, 500 * MIB));
	MUST(cudaIpcGetMemHandle(&handle.memory, memory));
	MUST(cudaEventCreateWithFlags(&event, 4 | 2));
	MUST(cudaEventRecord(event, NULL));
	MUST(cudaEventQuery(event));
	MUST(cudaIpcGetEventHandle(&handle.event, event));
	if (write(to_child[1], &handle, sizeof handle) != sizeof handle || read(to_parent[0], &word, 1) != 1)
		exit(1);
	wait(NULL);
	MUST(cudaMemcpy(&byte, memory, 1, 2));
	printf("parent reads %d, free %zu\n", byte, free_bytes() / MIB);
}

static void errors(void) {
	int device = -1, count = 0;
	void *memory;
	MUST(cudaGetDeviceCount(&count));
	MUST(cudaGetDevice(&device));
	int next = cudaSetDevice(count), direction = cudaMemcpy(&count, &device, 4, 9), null = cudaMalloc(NULL, 1);
	printf("device %d of %d, next %s, direction %s, null %s, ", device, count, cudaGetErrorName(next),
	       cudaGetErrorName(direction), cudaGetErrorName(null));
	MUST(cudaMalloc(&memory, 0));
	printf("nothing is %s, last %s\n", memory ? "somewhere" : "nowhere", cudaGetErrorName(cudaGetLastError()));
}

int main(int count, char **arguments) {
	const char *what = count > 1 ? arguments[1] : "";
	if (!strcmp(what, "version")) {
		int version;
		static char properties[4096];
		size_t memory;
		MUST(cudaRuntimeGetVersion(&version));
		MUST(cudaGetDeviceProperties(properties, 0));
		memcpy(&memory, properties + 288, sizeof memory);
		printf("version %d, %s, memory %zu\n", version / 1000, properties, memory / MIB);
	} else if (!strcmp(what, "fill")) {
		fill(0);
	} else if (!strcmp(what, "async")) {
		fill(1);
	} else if (!strcmp(what, "reset")) {
		reset();
	} else if (!strcmp(what, "capture")) {
		capture();
	} else if (!strcmp(what, "code")) {
		code();
	} else if (!strcmp(what, "threads")) {
		threads();
	} else if (!strcmp(what, "share")) {
		share();
	} else if (!strcmp(what, "errors")) {
		errors();
	} else {
		return 64;
	}
	return 0;
}
