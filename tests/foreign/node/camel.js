// The jobs API through proto-loader's defaults, where fields have camelCase names: node camel.js PROTO ADDRESS TYPE
'use strict';

const grpc = require('@grpc/grpc-js');
const protoLoader = require('@grpc/proto-loader');

const [protoPath, address, jobType] = process.argv.slice(2);
const jobsProto = grpc.loadPackageDefinition(protoLoader.loadSync(protoPath)).atom.jobs.v1;
const client = new jobsProto.JobsService(address, grpc.credentials.createInsecure());
const metadata = new grpc.Metadata();
metadata.add('x-api-key', process.env.WORKER_API_KEY);

function call(method, request) {
  return new Promise((resolve, reject) => {
    client[method](request, metadata, (error, response) => (error ? reject(error) : resolve(response)));
  });
}

function activate(request) {
  return new Promise((resolve, reject) => {
    const jobs = [];
    const stream = client.activateJobs(request, metadata);
    stream.on('data', (response) => jobs.push(...response.jobs));
    stream.on('end', () => resolve(jobs));
    stream.on('error', reject);
  });
}

async function main() {
  const created = await call('createJob', { jobType, variables: { url: 'https://example.org' } });
  // A snake_case name is no field here: the loader drops it, and the server gets no limit at all.
  const jobs = await activate({ type: jobType, worker: 'camel', max_jobs_to_activate: 1 });
  const unnamed = await call('completeJob', { job_key: created.jobKey }).catch((error) => error);
  const completed = await call('completeJob', { jobKey: jobs[0].jobKey, variables: { done: 'yes' } });
  const shown = await call('getJob', { jobKey: created.jobKey });
  process.stdout.write(
    JSON.stringify({
      created: created.jobKey,
      activated: jobs.map((job) => [job.jobKey, job.job_key === undefined]),
      unnamed: { code: unnamed.code, details: unnamed.details },
      completed: completed.success,
      state: shown.job.state,
    }) + '\n',
  );
  client.close();
}

main().catch((error) => {
  process.stdout.write(JSON.stringify({ error: error.message }) + '\n');
  process.exit(1);
});
