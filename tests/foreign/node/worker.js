// A worker as a user of the jobs API writes it: node worker.js PROTO ADDRESS TYPE
// The key comes from WORKER_API_KEY; every event is one line of JSON on standard output.
'use strict';

const grpc = require('@grpc/grpc-js');
const protoLoader = require('@grpc/proto-loader');

const [protoPath, address, jobType] = process.argv.slice(2);
// Without keepCase the loader renames every field to camelCase, and silently drops those that are written otherwise.
const definition = protoLoader.loadSync(protoPath, { keepCase: true, longs: String, defaults: true });
const jobsProto = grpc.loadPackageDefinition(definition).atom.jobs.v1;

const SIGNS = {
  retryable: ['connection refused', 'timeout', 'network unreachable'],
  rate_limit: ['rate limit', 'too many requests'],
  temporary: ['service unavailable', 'server error'],
};

function say(event, key, facts = {}) {
  process.stdout.write(JSON.stringify({ event, key, ...facts }) + '\n');
}

class ErrorHandler {
  constructor(call) {
    this.call = call;
  }

  classifyError(error) {
    const text = error.message.toLowerCase();
    const found = Object.entries(SIGNS).find(([, signs]) => signs.some((sign) => text.includes(sign)));
    return found ? found[0] : 'permanent';
  }

  handleJobError(jobKey, retries, error, attempt) {
    const kind = this.classifyError(error);
    if (kind === 'permanent' || retries <= 0) {
      return this.fail(kind, jobKey, 0, `Permanent error: ${error.message}`);
    }
    const strategies = {
      retryable: [`Attempt ${attempt}: ${error.message}`, Math.min(1000 * 2 ** attempt, 300000)],
      rate_limit: [`Rate limit: ${error.message}`, 60000],
      temporary: [`Temporary: ${error.message}`, 10000],
    };
    return this.fail(kind, jobKey, retries - 1, ...strategies[kind]);
  }

  async fail(kind, jobKey, retries, message, backoffMs) {
    const request = { job_key: jobKey, retries, error_message: message };
    if (backoffMs !== undefined) {
      request.backoff_timeout = backoffMs;
    }
    const response = await this.call('failJob', request);
    say('failed', jobKey, { success: response.success, message: response.message, kind, left: retries });
  }
}

class JobWorker {
  constructor(maxJobs = 10, timeout = 30000) {
    this.maxJobs = maxJobs;
    this.timeout = timeout;
    this.running = false;
    this.tries = new Map();
    this.client = new jobsProto.JobsService(address, grpc.credentials.createInsecure());
    this.metadata = new grpc.Metadata();
    this.metadata.add('x-api-key', process.env.WORKER_API_KEY);
    this.errors = new ErrorHandler((method, request) => this.call(method, request));
  }

  async start() {
    this.running = true;
    while (this.running) {
      try {
        await this.activateAndProcessJobs();
      } catch (error) {
        if (this.running) {
          say('error', '', { code: error.code, details: error.details });
          return;
        }
      }
    }
  }

  stop() {
    this.running = false;
    this.stream.cancel();
  }

  activateAndProcessJobs() {
    const request = {
      type: jobType,
      worker: 'js-worker',
      timeout: this.timeout,
      max_jobs_to_activate: this.maxJobs,
      fetch_variable: ['url', 'method', 'error', 'errors'],
    };
    const work = [];
    return new Promise((resolve, reject) => {
      this.stream = this.client.activateJobs(request, this.metadata);
      this.stream.on('data', (response) => {
        if (!response.success) {
          say('refused', '', { message: response.error_message });
          return;
        }
        work.push(...response.jobs.map((job) => this.processJob(job)));
      });
      this.stream.on('end', () => Promise.all(work).then(resolve, reject));
      this.stream.on('error', reject);
    });
  }

  async processJob(job) {
    const variables = JSON.parse(job.variables);
    const attempt = (this.tries.get(job.job_key) || 0) + 1;
    this.tries.set(job.job_key, attempt);
    say('activated', job.job_key, { retries: job.retries, variables, deadline: Number(job.deadline) });
    let result;
    try {
      result = this.request(variables, attempt);
    } catch (error) {
      await this.errors.handleJobError(job.job_key, job.retries, error, attempt);
      return;
    }
    await this.completeJob(job.job_key, result);
  }

  // Stands for an HTTP request that fails as often as the job says.
  request(variables, attempt) {
    if (attempt <= Number(variables.errors || 0)) {
      throw new Error(variables.error);
    }
    return { httpStatus: '200', url: variables.url, method: variables.method || 'GET' };
  }

  async completeJob(jobKey, variables) {
    const response = await this.call('completeJob', { job_key: jobKey, variables });
    say('completed', jobKey, { success: response.success, message: response.message });
  }

  call(method, request) {
    return new Promise((resolve, reject) => {
      this.client[method](request, this.metadata, (error, response) => (error ? reject(error) : resolve(response)));
    });
  }
}

const worker = new JobWorker();
process.on('SIGTERM', () => worker.stop());
worker.start().then(
  () => {
    say('stopped', '');
    worker.client.close();
  },
  (error) => {
    say('error', '', { code: error.code, details: error.details || error.message });
    process.exit(1);
  },
);
