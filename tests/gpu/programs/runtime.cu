// The CUDA runtime as nvcc links it, statically: sees the limit, is refused there, and computes afterwards.
#include <cstdio>
#include <vector>

#include <cuda_runtime.h>

static __global__ void doubled(float *numbers, int count) {
    int place = blockIdx.x * blockDim.x + threadIdx.x;
    if (place < count) numbers[place] *= 2;
}

#define MUST(call)                                                                                            \
    do {                                                                                                      \
        cudaError_t code = (call);                                                                            \
        if (code != cudaSuccess) {                                                                            \
            std::fprintf(stderr, "error: %s: %s\n", #call, cudaGetErrorString(code));                         \
            return 1;                                                                                         \
        }                                                                                                     \
    } while (0)

int main() {
    const size_t piece = 64u << 20;
    const int count = 1 << 20;
    cudaDeviceProp properties;
    size_t free_bytes, total;
    MUST(cudaGetDeviceProperties(&properties, 0));
    MUST(cudaMemGetInfo(&free_bytes, &total));
    std::vector<void *> held;
    cudaError_t refusal;
    for (void *memory; (refusal = cudaMalloc(&memory, piece)) == cudaSuccess;) held.push_back(memory);
    size_t refused_at = held.size() * piece;
    cudaGetLastError();
    for (void *memory : held) MUST(cudaFree(memory));

    std::vector<float> numbers(count, 1.5f);
    float *on_card;
    MUST(cudaMalloc(&on_card, count * sizeof(float)));
    MUST(cudaMemcpy(on_card, numbers.data(), count * sizeof(float), cudaMemcpyHostToDevice));
    doubled<<<(count + 255) / 256, 256>>>(on_card, count);
    MUST(cudaGetLastError());
    MUST(cudaMemcpy(numbers.data(), on_card, count * sizeof(float), cudaMemcpyDeviceToHost));
    for (float number : numbers)
        if (number != 3.0f) {
            std::fprintf(stderr, "error: the kernel computed %f\n", number);
            return 1;
        }
    const char *same = properties.totalGlobalMem == total ? "" : "properties say another size";
    std::printf("{\"sees\": %zu, \"refused_at\": %zu, \"refusal\": \"%s\", \"remark\": \"%s\"}\n", total, refused_at,
                cudaGetErrorName(refusal), same);
    return 0;
}
